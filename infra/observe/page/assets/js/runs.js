// The runs of a folder.

import { badge, h, num, visible } from "./dom.js";
import { table } from "./table.js";
import { ask, link } from "./wire.js";

export function runs() {
  const body = h("div");
  return {
    element: h("section", {}, h("h1", {}, "Runs"), body),
    async refresh() {
      const found = await ask("runs");
      const rows = found.runs.sort((one, other) => (other.changed ?? 0) - (one.changed ?? 0));
      body.replaceChildren(table(COLUMNS, rows, (run) => link({ run: run.name })));
    },
  };
}

function state(run) {
  if (run.problem) return h("span", { class: "bad-text" }, visible(run.problem));
  return run.ended ? badge("ended", "scored") : badge("not ended", "open");
}

const COLUMNS = [
  ["Run", (run) => run.name, "link"],
  ["Step", (run) => `${num(run.step)}${run.steps_asked ? ` / ${num(run.steps_asked)}` : ""}`, "number"],
  ["Reward", (run) => num(run.reward), "number"],
  ["Evaluation", (run) => num(run.eval_reward), "number"],
  ["State", (run) => state(run)],
  ["Last change", (run) => (run.changed ? new Date(run.changed * 1000).toLocaleString() : "–")],
];
