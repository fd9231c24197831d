// One rollout: who made it and how it was scored, and its tokens turn by turn.

import { badge, h, num, plural, seconds, visible } from "./dom.js";
import { member } from "./groups.js";
import { tokenView } from "./tokens.js";
import { address, ask, go, link } from "./wire.js";

export function rollout() {
  const element = h("section", { class: "rollout" });
  let seen = "";
  let view = null;
  let neighbours = [];
  const keys = (event) => {
    if (event.target.closest?.("input, select, textarea, .tokens, svg") || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = neighbours.findIndex((one) => one.id === address().id);
    const next = neighbours[at + ({ j: 1, k: -1 }[event.key] ?? NaN)];
    if (next) go({ ...address(), id: next.id });
  };
  addEventListener("keydown", keys);
  return {
    element,
    leave: () => removeEventListener("keydown", keys),
    async refresh(words) {
      const found = await ask("rollout", { run: words.run, id: words.id ?? "" });
      const now = JSON.stringify([found.end, found.row, found.failures.length, found.members.length]);
      neighbours = found.members;
      if (now === seen) return view?.color(words.color);
      seen = now;
      view = found.trajectory ? tokenView(found, words.color) : null;
      element.replaceChildren(...page(found, words, view));
    },
  };
}

function page(found, words, view) {
  const row = found.row ?? {};
  const title = h("div", { class: "title" }, h("h1", {}, `Rollout ${found.id}`), badge(found.end),
    row.step != null ? h("a", { href: link({ run: words.run, view: "groups", step: row.step }) }, `trained in step ${row.step}`) : null,
    found.reason ? h("span", { class: "muted" }, visible(found.reason)) : null);
  const group = h("nav", { class: "members", "aria-label": "The group's rollouts" },
    h("a", { href: link({ run: words.run, view: "rollouts", group: found.group }) }, `group ${found.group}`),
    found.members.map((one) => member(one, words.run, found.id)),
    h("span", { class: "muted" }, "j / k: next, previous"));
  const problems = [found.problem, found.trajectory?.texts_problem].filter(Boolean)
    .map((text) => h("p", { class: "problem" }, visible(text)));
  const failures = found.failures.map(failure);
  if (!view) return [title, group, ...problems, ...failures];
  return [title, group, ...problems, ...failures, facts(found),
    h("div", {}, view.element, conversation(found.trajectory)), aside(found)];
}

function facts(found) {
  const one = found.trajectory;
  const row = found.row;
  const own = found.members.find((other) => other.id === found.id);
  const sampled = one.tokens.versions.filter(([version]) => version >= 0).map(([version]) => version);
  const [oldest, newest] = [Math.min(...sampled), Math.max(...sampled)];
  const versions = sampled.length === 0 ? "–" : oldest === newest ? `v${oldest}` : `v${oldest}–${newest}`;
  return h("dl", { class: "facts" }, [
    ["Reward", num(one.reward)],
    ["Advantage", own?.advantage == null ? "not trained on" : num(own.advantage)],
    ["Versions", row.version != null ? `${versions}, trained at v${row.version}` : versions],
    ["Staleness", num(row.staleness)],
    ["Tokens", `${num(one.num_prompt_tokens)} + ${num(one.tokens.ids.length - one.num_prompt_tokens)}`],
    ["Ended by", `${one.finish_reason} (${one.status})`],
    ["Interrupted", one.interruptions.length ? `${plural(one.interruptions.length, "time")}, ${num(one.num_resumed_elsewhere)} resumed elsewhere` : "never"],
    ["Worker", one.worker],
    ["Dataset row", num(one.row)],
    ["Attempt", `${row.attempt + 1}${found.copies > 1 ? `, ${found.copies} copies came` : ""}`],
  ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(String(value))))));
}

function aside(found) {
  const one = found.trajectory;
  const rewards = Object.entries(one.rewards);
  const times = [["generating", one.timings.generating_s], ["in tools", one.timings.tools_s], ["waiting", one.timings.waiting_s], ["scoring", one.reward_s]];
  const longest = Math.max(...times.map(([, value]) => value), 1e-9);
  const highest = Math.max(...rewards.map(([, value]) => Math.abs(value)), 1e-9);
  return h("aside", {},
    h("h2", {}, "Rewards by function"), h("p", { class: "muted" }, "unweighted"), bars(rewards, highest, num),
    h("h2", {}, "Time"), bars(times, longest, seconds),
    one.interruptions.length ? [h("h2", {}, "Cuts"), h("ol", { class: "cuts" }, one.interruptions.map((cut) =>
      h("li", {}, `after token ${num(cut.at_token)}: ${cut.reason}, v${cut.version}, `, h("span", {}, visible(cut.worker)))))] : null,
    h("h2", {}, "Prefill"), h("p", { class: "muted" }, `${num(one.num_prefilled)} computed, ${num(one.num_cached)} from cache, ${num(one.num_reprefilled)} again after cuts`),
    h("h2", {}, "Reward data"), h("pre", {}, visible(JSON.stringify(one.reward_data, null, 1))));
}

function bars(pairs, highest, show) {
  if (!pairs.length) return h("p", { class: "muted" }, "none");
  return h("table", { class: "bars" }, h("tbody", {}, pairs.map(([name, value]) => h("tr", {},
    h("th", { scope: "row" }, visible(name)), h("td", { class: "number" }, show(value)),
    h("td", { class: "bar" }, h("meter", { min: 0, max: highest, value: Math.abs(value), class: value < 0 ? "negative" : "" }))))));
}

function conversation(one) {
  const said = one.messages.map((message) => h("li", { class: message.role }, h("b", {}, message.role),
    h("pre", {}, visible(message.content)),
    message.tool_calls.map((call) => h("pre", { class: "call" }, visible(`${call.function.name}(${call.function.arguments})`)))));
  return h("details", { class: "conversation", open: one.tokens.texts === null }, h("summary", {}, "Messages as text"), h("ol", {}, said));
}

function failure(one) {
  return h("article", { class: "failure" }, h("h2", {}, `Failure${one.stage ? ` in ${one.stage}` : ""}`),
    h("p", {}, `attempt ${one.attempt + 1}${one.kind ? `, ${one.kind}` : ""}${one.worker ? `, ${one.worker}` : ""}`),
    h("pre", {}, visible(one.error)), one.traceback ? h("pre", {}, visible(one.traceback)) : null,
    one.problem ? h("p", { class: "problem" }, visible(one.problem)) : null);
}
