// The run's charts, of the metrics file: small ones, side by side, on one axis.

import { chart } from "./chart.js";
import { h, num, plural } from "./dom.js";
import { ask, link } from "./wire.js";

// [title, series as [column, label], what it means]; `eval/` columns are of evaluations.
const CHARTS = [
  ["Reward", [["arrived/reward", "all that arrived"], ["reward/mean", "trained on"], ["eval/reward", "evaluation"]], "mean of the rewards"],
  ["Loss", [["train/loss", "loss"]], "of the step's batch"],
  ["KL to the sampling policy", [["train/kl", "k1"], ["train/kl_k3", "k3"], ["train/mismatch_kl_k3", "k3, fresh tokens"]], "nats per token"],
  ["Staleness", [["staleness/mean", "mean"], ["staleness/max", "max"]], "versions between trainer and token"],
  ["Groups that ended", [["groups/trained", "trained"], ["groups/filtered", "filtered"], ["groups/stale", "stale"], ["groups/dead", "dead"]], "ledger, per step"],
  ["Open groups", [["groups/open", "open"]], "ledger: issued and not ended"],
  ["Time of a step", [["time/wait_s", "waiting for rollouts"], ["time/train_s", "training"], ["time/publish_s", "publishing"]], "seconds"],
  ["Throughput", [["perf/tokens_per_s", "tokens"]], "tokens per second"],
  ["Entropy", [["train/entropy", "entropy"]], "nats per token"],
  ["Clipped", [["train/clip_frac", "all"], ["train/clip_frac_low", "low"], ["train/clip_frac_high", "high"]], "share of tokens"],
  ["Gradient norm", [["train/grad_norm", "before clipping"]], ""],
  ["Interruptions", [["arrived/interruptions", "of what arrived"], ["batch/resumed_elsewhere", "resumed elsewhere"]], "per step"],
  ["Response length", [["length/response_mean", "mean"], ["length/response_max", "max"]], "tokens"],
  ["Members", [["members/failed", "failed"], ["members/reissued", "reissued"], ["members/late", "late"]], "ledger, per step"],
];

export function charts() {
  const facts = h("dl", { class: "facts" });
  const grid = h("div", { class: "charts" });
  const rest = h("div", { class: "charts" });
  const folded = h("details", {}, h("summary", {}, "Everything else in the metrics file"), rest);
  const note = h("p", { class: "muted" });
  let data = null;
  folded.addEventListener("toggle", () => drawRest());
  const drawRest = () => {
    if (folded.open && data) rest.replaceChildren(...others(data));
  };
  return {
    element: h("section", {}, h("h1", {}, "Run"), facts, note, grid, folded),
    async refresh(words) {
      const known = ask("overview", words);
      known.catch(() => {}); // told when it is awaited, below
      const found = await ask("charts", words);
      data = found;
      note.textContent = found.every > 1 ? `Each point is the mean of ${found.every} steps.` : "";
      const drawn = CHARTS.map(([title, series, unit]) => {
        const lines = series.map(([column, label]) => line(found, column, label)).filter(Boolean);
        return lines.length ? chart({ title, unit, lines }) : null;
      }).filter(Boolean);
      grid.replaceChildren(...rewardsByFunction(found), ...queues(found));
      grid.prepend(...drawn);
      if (!drawn.length) grid.replaceChildren(h("p", { class: "empty" }, "No step yet: charts begin with the first."));
      drawRest();
      facts.replaceChildren(...overview(await known, words.run));
    },
  };
}

function line(found, column, label) {
  const part = column.startsWith("eval/") ? found.evals : found.steps;
  const values = part.columns[column];
  return values?.some((value) => value !== null)
    ? { label, x: part.x, y: values, points: column.startsWith("eval/") } : null;
}

function several(found, prefix, title, unit) {
  const names = Object.keys(found.steps.columns).filter((name) => name.startsWith(prefix)).slice(0, 6);
  const lines = names.map((name) => line(found, name, name.slice(prefix.length))).filter(Boolean);
  return lines.length ? [chart({ title, unit, lines })] : [];
}

const rewardsByFunction = (found) => several(found, "rewards/", "Rewards by function", "mean, unweighted");
const queues = (found) => several(found, "queue/", "Queues", "messages");

function others(found) {
  const drawn = new Set(CHARTS.flatMap(([, series]) => series.map(([column]) => column)));
  const names = [...Object.keys(found.steps.columns), ...Object.keys(found.evals.columns).filter((name) => name.startsWith("eval/"))];
  return names.filter((name) => !drawn.has(name)).sort().map((name) => {
    const only = line(found, name, "");
    return only ? chart({ title: name, unit: "", lines: [only] }) : null;
  }).filter(Boolean);
}

function overview(known, run) {
  const recipe = known.recipe;
  const ends = Object.entries(known.groups).map(([end, count]) =>
    h("a", { href: link({ run, view: "groups", end }) }, `${num(count)} ${end}`));
  const facts = [
    ["Steps", known.steps_asked ? `${num(known.step)} of ${num(known.steps_asked)}` : num(known.step)],
    ["Policy", known.version < 0 ? "–" : `v${known.version}`],
    ["Reward", num(known.reward)],
    ["Evaluation", num(known.eval_reward)],
    ["Groups", ends.flatMap((one, place) => (place ? [" · ", one] : [one]))],
    ["Rollouts", [h("a", { href: link({ run, view: "rollouts" }) }, num(known.rollouts)), known.failures ? [" · ", h("a", { href: link({ run, view: "rollouts", kind: "failure" }) }, plural(known.failures, "failure"))] : []].flat()],
  ];
  if (recipe) facts.push(
    ["Model", h("span", { class: "path" }, recipe.model)],
    ["Recipe", `${recipe.groups_per_step} groups of ${recipe.group_size} · staleness ≤ ${recipe.max_staleness} · lag ≤ ${recipe.max_version_lag} · ${recipe.on_sync}`]);
  return facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}
