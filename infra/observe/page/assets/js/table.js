// Tables whose rows lead somewhere, and their pages.

import { h, num, plural } from "./dom.js";
import { address, link } from "./wire.js";

// columns: [title, cell(row), kind, hint]; the cell of kind "link" carries the row's link.
export function table(columns, rows, href) {
  const head = columns.map(([title, , kind, hint]) =>
    h("th", { scope: "col", class: kind, title: hint }, title));
  const body = rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => {
    const inside = cell(row);
    return h("td", { class: kind }, kind === "link" ? h("a", { href: href(row) }, inside) : inside);
  })));
  const made = h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  made.addEventListener("click", (event) => {
    if (event.target.closest("a") || String(getSelection())) return;
    event.target.closest("tbody tr")?.querySelector("td.link a")?.click();
  });
  made.addEventListener("keydown", rowKeys);
  return rows.length ? h("div", { class: "scroll" }, made) : h("p", { class: "empty" }, "Nothing here.");
}

function rowKeys(event) {
  const way = { ArrowDown: "nextElementSibling", j: "nextElementSibling",
    ArrowUp: "previousElementSibling", k: "previousElementSibling" }[event.key];
  const next = way && event.target.closest("tbody tr")?.[way]?.querySelector("td.link a");
  if (!next) return;
  event.preventDefault();
  next.focus();
}

// What stands there is replaced, and the link that had the focus has it again.
export function replace(place, ...children) {
  const focused = place.contains(document.activeElement)
    ? document.activeElement.getAttribute("href") : null;
  place.replaceChildren(...children);
  if (focused) [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
}

export function pager(found, what) {
  const words = address();
  const limit = Number(words.limit || 100);
  const first = found.total ? found.offset + 1 : 0;
  const last = found.offset + found.rows.length;
  const at = (offset, text, rel) => {
    const there = offset >= 0 && offset < found.total && offset !== found.offset;
    return there ? h("a", { href: link({ ...words, offset: offset || "" }), rel }, text)
      : h("span", { class: "muted" }, text);
  };
  return h("nav", { class: "pager", "aria-label": "Pages" },
    h("span", {}, found.total > found.rows.length
      ? `${num(first)}–${num(last)} of ${plural(found.total, what)}` : plural(found.total, what)),
    found.total > found.rows.length
      ? h("span", { class: "pages" }, at(found.offset - limit, "‹ previous", "prev"), at(found.offset + limit, "next ›", "next"),
        at(Math.floor((found.total - 1) / limit) * limit, "last »"))
      : null);
}
