// The tokens of a rollout, turn by turn, coloured by version, surprise or advantage.

import { h, num, seconds, visible } from "./dom.js";
import { address, go } from "./wire.js";

const AT_ONCE = 3000; // tokens that are laid out before the reader asks for more
const NUM_COLORS = 8;
const LEVELS = 7;
const COLORINGS = {
  version: "policy version",
  surprise: "surprise",
  gap: "logprob gap",
  advantage: "advantage",
  plain: "none",
};

export function tokenView(found, coloring) {
  const data = unpack(found);
  const area = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys go from one to the next" });
  const readout = h("p", { class: "readout", role: "status" }, "Point at a token, or focus the text and use ← →.");
  const legend = h("div", { class: "legend" });
  const choices = Object.entries(COLORINGS).map(([name, text]) => h("label", {},
    h("input", { type: "radio", name: "color", value: name, onchange: () => go({ ...address(), color: name === "version" ? "" : name }, { replace: true }) }), text));
  const spans = [];
  let current = COLORINGS[coloring] ? coloring : "version";
  const paint = (span) => {
    const at = Number(span.dataset.at);
    span.className = `t ${data.mask[at] ? data.colors[current](at) : "masked"}`;
  };
  const color = (name) => {
    current = COLORINGS[name] ? name : "version";
    for (const choice of choices) choice.firstChild.checked = choice.firstChild.value === current;
    spans.forEach(paint);
    legend.replaceChildren(...data.legends[current]());
  };
  layOut(area, data, spans, paint);
  color(current);
  follow(area, data, spans, readout);
  return {
    element: h("div", { class: "reading" },
      h("fieldset", { class: "coloring" }, h("legend", {}, "Colour by"), choices), legend, area, readout),
    color,
  };
}

function unpack(found) {
  const one = found.trajectory;
  const { ids, texts, logprobs } = one.tokens;
  const mask = expand(one.tokens.mask);
  const versions = expand(one.tokens.versions);
  const gaps = gapsOf(found.trained_logprobs, mask, logprobs);
  const known = [...new Set(versions.filter((version) => version >= 0))].sort((a, b) => a - b);
  const place = new Map(known.map((version, at) => [version, at % NUM_COLORS]));
  const advantage = found.members.find((member) => member.id === found.id)?.advantage ?? null;
  const strength = advantage === null ? "" : advantage === 0 ? "adv zero"
    : `adv ${advantage > 0 ? "up" : "down"}${Math.min(3, Math.ceil(Math.abs(advantage)))}`;
  return {
    one, ids, texts, logprobs, mask, versions, advantage, gaps,
    colors: {
      version: (at) => `v${place.get(versions[at])}`,
      surprise: (at) => `s${level(-logprobs[at])}`,
      gap: (at) => (gaps ? gapColor(gaps[at]) : ""),
      advantage: () => strength,
      plain: () => "",
    },
    legends: {
      version: () => [...known.map((version) => swatch(`v${place.get(version)}`, `v${version}`)), dimmed()],
      surprise: () => [h("span", {}, "Probability when it was sampled:"), ...EDGES.map((edge, at) => swatch(`s${at}`, at === 0 ? `p > ${num(Math.exp(-EDGES[1]), 2)}` : `p ≤ ${num(Math.exp(-edge), 2)}`)), dimmed()],
      gap: () => (gaps === null ? [h("span", {}, "Not trained on, so the trainer gave it no logprobs."), dimmed()] : [
        h("span", {}, "Trainer's logprob minus the one when sampled:"), swatch("down3", "< −1"), swatch("down2", "−1 to −0.2"), swatch("down1", "−0.2 to −0.05"),
        swatch("adv zero", "± 0.05"), swatch("up1", "to 0.2"), swatch("up2", "to 1"), swatch("up3", "> 1"), dimmed()]),
      advantage: () => (advantage === null
        ? [h("span", {}, "Not trained on, so there is no advantage."), dimmed()]
        : [swatch(strength, `${num(advantage)} for every sampled token`), dimmed()]),
      plain: () => [dimmed()],
    },
  };
}

// The trainer's logprobs are of the sampled tokens only, in order.
function gapsOf(trained, mask, logprobs) {
  if (!trained) return null;
  let place = 0;
  return mask.map((sampled, at) => (sampled ? trained[place++] - logprobs[at] : 0));
}

function gapColor(gap) {
  const size = [0.05, 0.2, 1].findLastIndex((edge) => Math.abs(gap) > edge) + 1;
  return size === 0 ? "adv zero" : `${gap > 0 ? "up" : "down"}${size}`;
}

// Nats of surprise at which a level begins: a token of probability 1/2 is at level 2.
const EDGES = [0, 0.1, 0.5, 1, 2, 4, 7];
const level = (nats) => Math.min(LEVELS - 1, EDGES.findLastIndex((edge) => nats >= edge) || 0) || 0;
const swatch = (kind, text) => h("span", { class: "swatch" }, h("i", { class: `t ${kind}` }, "ab"), text);
const dimmed = () => h("span", { class: "swatch" }, h("i", { class: "t masked" }, "ab"), "not sampled (masked)");
const expand = (runs) => runs.flatMap(([value, count]) => Array(count).fill(value));

function layOut(area, data, spans, paint) {
  const { one, ids } = data;
  const turns = one.turns.length ? one.turns : [{ kind: "tokens", start: 0, stop: ids.length }];
  const cuts = new Map();
  for (const cut of one.interruptions) cuts.set(cut.at_token, [...(cuts.get(cut.at_token) ?? []), cut]);
  const parts = layOutParts(data, turns, cuts, spans, paint);
  const more = h("button", { type: "button", class: "more" });
  const advance = () => {
    const until = spans.length + AT_ONCE;
    let next = parts.next();
    while (!next.done) {
      if (next.value) area.insertBefore(next.value, more.isConnected ? more : null);
      if (spans.length >= until) break;
      next = parts.next();
    }
    if (next.done) return more.remove();
    more.textContent = `Show the next ${num(Math.min(AT_ONCE, ids.length - spans.length))} of ${num(ids.length)} tokens`;
    area.append(more);
  };
  more.addEventListener("click", advance);
  advance();
}

// Blocks to append, and nothing after each token, so that the caller can stop anywhere.
function* layOutParts(data, turns, cuts, spans, paint) {
  let assistant = -1;
  let version = null;
  for (const turn of turns) {
    if (turn.kind === "assistant") assistant += 1;
    const text = h("div", { class: "text" });
    yield h("section", { class: `turn ${turn.kind}` },
      h("h3", {}, turn.kind, turn.finish_reason ? h("small", {}, turn.finish_reason) : null), text);
    for (let at = turn.start; at < turn.stop; at += 1) {
      for (const cut of cuts.get(at) ?? []) text.append(cutMark(cut));
      cuts.delete(at);
      if (data.mask[at] && version !== null && data.versions[at] !== version) {
        text.append(h("span", { class: "mark" }, `v${data.versions[at]}`));
      }
      if (data.mask[at]) version = data.versions[at];
      const span = h("span", { "data-at": at }, shownText(data, at));
      paint(span);
      spans.push(span);
      text.append(span);
      yield null;
    }
    for (const cut of cuts.get(turn.stop) ?? []) text.append(cutMark(cut));
    cuts.delete(turn.stop);
    if (turn.kind === "assistant") yield* calls(data.one, (at) => at === assistant);
  }
  yield* calls(data.one, (at) => !(at <= assistant));
}

function cutMark(cut) {
  const what = `cut after token ${cut.at_token} by ${cut.reason} at v${cut.version}, on ${cut.worker}`;
  return h("span", { class: "cut", title: visible(what) }, h("span", { "aria-hidden": "true" }, "✂ "),
    `${cut.reason} v${cut.version} · ${visible(cut.worker)}`);
}

function shownText(data, at) {
  if (data.texts === null) return `${data.ids[at]} `;
  const text = data.texts[at];
  return text === "" ? "◌" : visible(text).replaceAll("\n", "↵\n");
}

// Calls have the id <rollout>:<turn>:<position>; their results stand below the turn.
function* calls(one, wanted) {
  for (const result of one.tool_results) {
    if (!wanted(Number(result.call.id.split(":").at(-2)))) continue;
    yield h("section", { class: `tool-call ${result.ok ? "" : "failed"}` },
      h("h3", {}, "call", h("small", {}, `${seconds(result.duration_s)}${result.ok ? "" : " · error"}`)),
      h("div", { class: "text" },
        h("pre", {}, visible(`${result.call.function.name}(${result.call.function.arguments})`)),
        h("pre", { class: "result" }, visible(result.content))));
  }
}

// What the pointer or the arrow keys are at.
function follow(area, data, spans, readout) {
  let chosen = null;
  const choose = (span) => {
    chosen?.classList.remove("chosen");
    chosen = span;
    span.classList.add("chosen");
    const at = Number(span.dataset.at);
    const text = data.texts === null ? "" : ` ${JSON.stringify(visible(data.texts[at]))}`;
    const told = data.mask[at]
      ? ` · sampled by v${data.versions[at]} · logprob ${num(data.logprobs[at])} · probability ${num(100 * Math.exp(data.logprobs[at]), 3)} %${data.gaps ? ` · trainer's logprob ${num(data.logprobs[at] + data.gaps[at])}, gap ${num(data.gaps[at])}` : ""}`
      : " · not sampled";
    readout.textContent = `token ${num(at)}${text} · id ${data.ids[at]}${told}`;
  };
  area.addEventListener("pointerover", (event) => {
    const span = event.target.closest("[data-at]");
    if (span) choose(span);
  });
  area.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = move && spans[chosen ? spans.indexOf(chosen) + move : 0];
    if (!next) return;
    event.preventDefault();
    choose(next);
    next.scrollIntoView({ block: "nearest" });
  });
}
