// Steps: what each trained on, and what came of it.

import { badge, h, num } from "./dom.js";
import { pager, replace, table } from "./table.js";
import { address, ask, link } from "./wire.js";

export function steps() {
  const body = h("div");
  return {
    element: h("section", {}, h("h1", {}, "Steps"),
      h("p", { class: "lead" }, "What each step trained on. A step leads to its groups."), body),
    async refresh(words) {
      const found = await ask("steps", { run: words.run, offset: words.offset ?? 0 });
      replace(body, pager(found, "step"), table(COLUMNS, found.rows,
        (row) => link({ run: words.run, view: "groups", step: row.step })));
    },
  };
}

const COLUMNS = [
  ["Step", (row) => String(row.step), "link"],
  ["Trained from", (row) => `v${row.version}`, "number", "version of the weights before the step"],
  ["Published", (row) => (row.published === null ? "–" : `v${row.published}`), "number"],
  ["Groups", (row) => num(row.groups), "number"],
  ["Rollouts", (row) => h("a", { href: link({ run: address().run, view: "rollouts", step: row.step }) }, num(row.members)), "number"],
  ["Reward", (row) => num(row.mean), "number", "mean of the rollouts trained on"],
  ["Deviation", (row) => num(row.std), "number"],
  ["Staleness", (row) => `${num(row.staleness_mean, 2)} / ${num(row.staleness_max)}`, "number", "mean / max, in versions"],
  ["Loss", (row) => num(row.loss), "number"],
  ["Gradient norm", (row) => num(row.grad_norm), "number"],
  ["Weights", (row) => (row.skipped ? badge(`skipped: ${row.skipped}`, "dead") : h("code", { title: "sha256 after the step" }, row.sha256 || "not done yet"))],
];
