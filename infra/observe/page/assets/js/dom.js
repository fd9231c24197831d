// Elements out of values. Text goes in as text nodes only: nothing from a rollout is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Control characters and those that reorder text, made visible.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export function visible(text) {
  return text.replace(HIDDEN, (character) =>
    `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e7 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))))));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${num(value * 1e6, 2)} µs`;
  if (value < 1) return `${num(value * 1000, 3)} ms`;
  return value < 120 ? `${num(value, 3)} s` : `${num(value / 60, 3)} min`;
}

export function badge(text, kind = text) {
  return h("span", { class: `badge ${/^[a-z]+$/.test(kind) ? kind : ""}` }, text);
}

export function plural(count, word) {
  return `${num(count)} ${word}${count === 1 ? "" : "s"}`;
}
