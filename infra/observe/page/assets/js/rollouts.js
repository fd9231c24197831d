// All rollouts: searched, filtered, sorted; a page at a time.

import { badge, h, num, seconds, visible } from "./dom.js";
import { filterBar } from "./filters.js";
import { pager, replace, table } from "./table.js";
import { ask, link } from "./wire.js";

const FIELDS = [
  { name: "q", label: "Search", kind: "search", placeholder: "text of messages, calls, results, errors" },
  { name: "sort", label: "Order", options: [["", "newest"], ["oldest", "oldest"], ["worst", "worst reward"], ["best", "best reward"], ["stale", "most stale"], ["cut", "most interrupted"], ["longest", "longest"], ["shortest", "shortest"], ["slowest", "slowest"], ["turns", "most turns"], ["tools", "most tool calls"]] },
  { name: "purpose", label: "For", options: [["", "any"], ["train", "training"], ["eval", "evaluation"]] },
  { name: "end", label: "Its group", options: [["", "any"], ["trained", "trained"], ["filtered", "filtered"], ["stale", "stale"], ["dead", "dead"], ["open", "open"], ["scored", "scored"]] },
  { name: "kind", label: "Kind", options: [["", "all"], ["trajectory", "scored"], ["failure", "failed"]] },
  { name: "status", label: "Ended", options: [["", "any way"], ["completed", "completed"], ["truncated", "truncated"]] },
  { name: "step", label: "Step", kind: "number" },
  { name: "version", label: "Version", kind: "number" },
  { name: "min_reward", label: "Reward ≥", kind: "number" },
  { name: "max_reward", label: "≤", kind: "number" },
  { name: "cut", label: "interrupted", kind: "check" },
  { name: "tool", label: "used tools", kind: "check" },
];

export function rollouts() {
  const bar = filterBar(FIELDS);
  const body = h("div");
  const title = h("h1", {}, "Rollouts");
  return {
    element: h("section", {}, title, bar.element, body),
    async refresh(words) {
      bar.update(words);
      title.textContent = words.group ? `Rollouts of group ${words.group}` : "Rollouts";
      const { view, id, ...asked } = words;
      const found = await ask("rollouts", asked);
      const waits = found.waits_for_bodies && found.known < found.arrived
        ? h("p", { class: "muted", role: "status" }, `Of those read so far: ${num(found.known)} of ${num(found.arrived)}. The list completes itself.`) : null;
      replace(body, ...[pager(found, "rollout"), waits, table(COLUMNS, found.rows,
        (row) => link({ run: words.run, view: "rollout", id: row.id })),
      found.rows.length > 30 ? pager(found, "rollout") : null].filter(Boolean));
    },
  };
}

const COLUMNS = [
  ["Rollout", (row) => row.id, "link"],
  ["Reward", (row) => (row.reward === null ? badge("failed", "dead") : num(row.reward)), "number"],
  ["Group", (row) => badge(row.end)],
  ["Step", (row) => (row.step === null ? "–" : String(row.step)), "number", "that trained it"],
  ["Versions", (row) => (row.oldest === null ? "–" : row.oldest === row.newest ? `v${row.oldest}` : `v${row.oldest}–${row.newest}`), "number", "of its sampled tokens"],
  ["Stale", (row) => num(row.staleness), "number", "trainer's version minus its oldest token's: at its step, else on arrival"],
  ["Cuts", (row) => (row.interruptions ? num(row.interruptions) : "·"), "number", "interruptions"],
  ["Tools", (row) => (row.tool_calls ? `${num(row.tool_calls)}${row.tool_errors ? ` (${row.tool_errors} ✕)` : ""}` : "·"), "number", "calls"],
  ["Tokens", (row) => num(row.tokens), "number"],
  ["Time", (row) => seconds(row.seconds), "number", "generating, in tools and waiting"],
  ["Says", (row) => h("span", { class: row.error || row.problem ? "bad-text" : "" }, visible(row.problem || row.error || row.preview)), "says"],
];
