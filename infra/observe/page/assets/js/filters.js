// A bar of filters whose values live in the address.

import { h } from "./dom.js";
import { address, go } from "./wire.js";

const WAIT_MS = 250;

export function filterBar(fields) {
  const inputs = new Map();
  let timer = 0;
  const change = (name, value) => {
    clearTimeout(timer);
    const { offset, ...words } = address();
    go({ ...words, [name]: value }, { replace: true });
  };
  const later = (name, input) => {
    clearTimeout(timer);
    timer = setTimeout(() => change(name, input.value), WAIT_MS);
  };
  const made = fields.map((field) => {
    let input;
    if (field.options) {
      input = h("select", { onchange: () => change(field.name, input.value) },
        field.options.map(([value, text]) => h("option", { value }, text)));
    } else if (field.kind === "check") {
      input = h("input", { type: "checkbox", onchange: () => change(field.name, input.checked ? "1" : "") });
    } else {
      input = h("input", { type: field.kind === "search" ? "search" : "text", inputmode: field.kind === "number" ? "decimal" : null,
        placeholder: field.placeholder, spellcheck: "false", autocomplete: "off", oninput: () => later(field.name, input) });
    }
    input.name = field.name;
    inputs.set(field.name, input);
    return h("label", { class: `field ${field.kind ?? "choice"}` }, h("span", {}, field.label), input);
  });
  const clear = h("button", { type: "button", onclick: () => {
    const { run, view } = address();
    go({ run, view });
  } }, "Clear");
  return {
    element: h("div", { class: "filters", role: "search" }, made, clear),
    update(words) {
      for (const [name, input] of inputs) {
        const value = words[name] ?? "";
        if (input.type === "checkbox") input.checked = value === "1";
        else if (input !== document.activeElement && input.value !== value) input.value = value;
      }
      clear.hidden = !fields.some(({ name }) => words[name]);
    },
  };
}
