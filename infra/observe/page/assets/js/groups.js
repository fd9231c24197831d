// Groups with the spread of their rewards; each square is one rollout.

import { badge, h, num, s, visible } from "./dom.js";
import { filterBar } from "./filters.js";
import { pager, replace } from "./table.js";
import { ask, link } from "./wire.js";

const FIELDS = [
  { name: "sort", label: "Order", options: [["", "newest"], ["oldest", "oldest"], ["spread", "widest spread"], ["worst", "worst mean"], ["best", "best mean"]] },
  { name: "end", label: "Ended", options: [["", "any way"], ["trained", "trained"], ["filtered", "filtered"], ["stale", "stale"], ["dead", "dead"], ["open", "still open"], ["scored", "scored"]] },
  { name: "purpose", label: "For", options: [["", "training and evaluation"], ["train", "training"], ["eval", "evaluation"]] },
  { name: "step", label: "Step", kind: "number" },
];

export function groups() {
  const bar = filterBar(FIELDS);
  const body = h("div");
  return {
    element: h("section", {}, h("h1", {}, "Groups"),
      h("p", { class: "lead" }, "The rollouts of one prompt. Without a spread of rewards there is nothing to learn: such a group is filtered."), bar.element, body),
    async refresh(words) {
      bar.update(words);
      const { view, id, ...asked } = words;
      const found = await ask("groups", { ...asked, limit: 50 });
      const scale = rewardScale(found.rows.flatMap((row) => row.members.map((one) => one.reward)));
      replace(body, pager({ ...found }, "group"), h("div", { class: "groups" },
        found.rows.map((row) => card(row, words.run, scale))));
    },
  };
}

export function rewardScale(rewards) {
  const known = rewards.filter((value) => value !== null);
  const [low, high] = [Math.min(0, ...known), Math.max(...known, known.length ? -Infinity : 1)];
  return { low, high: high > low ? high : low + 1 };
}

function card(row, run, scale) {
  return h("article", { class: "group" },
    h("div", { class: "who" },
      h("a", { href: link({ run, view: "rollouts", group: row.key }) }, row.key), badge(row.end),
      row.step !== null ? h("a", { class: "muted", href: link({ run, view: "groups", step: row.step }) }, `step ${row.step}`) : null),
    strip(row, scale),
    h("div", { class: "figures" }, `${num(row.mean)} ± ${num(row.std, 2)}`,
      row.attempts > 1 ? h("span", { class: "muted" }, ` · ${row.attempts} attempts`) : null),
    h("div", { class: "members" }, row.members.map((one) => member(one, run)),
      row.size > row.members.length ? h("span", { class: "muted" }, `+${num(row.size - row.members.length)}`) : null),
    row.reason ? h("p", { class: "muted reason" }, visible(row.reason)) : null);
}

export function member(one, run, current = "") {
  const text = one.reward === null ? "✕" : num(one.reward, 2);
  const kind = one.reward === null ? "failed" : one.reward > 0 ? "good" : one.reward < 0 ? "bad" : "zero";
  const title = one.reward === null ? `${one.id} failed: ${one.error}`
    : `${one.id}: reward ${num(one.reward)}, ${one.tokens} tokens${one.advantage != null ? `, advantage ${num(one.advantage)}` : ""}`;
  return h("a", { class: `member ${kind}`, title, href: link({ run, view: "rollout", id: one.id }),
    "aria-current": one.id === current ? "true" : null }, text);
}

// How often each reward was given, on one axis for the whole page; below it mean and deviation.
function strip(row, { low, high }) {
  const [width, height, base, bins] = [160, 26, 20, 30];
  const x = (value) => 4 + ((value - low) / (high - low)) * (width - 8);
  const counts = Array(bins).fill(0);
  for (const one of row.members) {
    if (one.reward !== null) counts[Math.min(bins - 1, Math.floor(((one.reward - low) / (high - low)) * bins))] += 1;
  }
  const most = Math.max(...counts, 1);
  const bars = counts.map((count, bin) => {
    const size = (count / most) * (base - 2);
    return count ? s("rect", { class: "count", x: 4 + (bin * (width - 8)) / bins, y: base - size, width: (width - 8) / bins - 1, height: size }) : null;
  });
  const label = row.mean === null ? "no rewards" : `rewards from ${num(row.min)} to ${num(row.max)}, mean ${num(row.mean)}`;
  const below = row.mean === null ? [] : [
    s("line", { x1: x(Math.max(low, row.mean - row.std)), x2: x(Math.min(high, row.mean + row.std)), y1: base + 3, y2: base + 3, class: "deviation" }),
    s("line", { x1: x(row.mean), x2: x(row.mean), y1: base, y2: height, class: "mean" })];
  return s("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    bars, s("line", { x1: 4, x2: width - 4, y1: base + 0.5, y2: base + 0.5, class: "axis" }), below);
}
