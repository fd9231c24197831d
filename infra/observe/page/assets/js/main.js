// Which view the address names, and what is new every two seconds.

import { badge, h, num } from "./dom.js";
import { charts } from "./overview.js";
import { groups } from "./groups.js";
import { rollout } from "./rollout.js";
import { rollouts } from "./rollouts.js";
import { runs } from "./runs.js";
import { steps } from "./steps.js";
import { replace } from "./table.js";
import { Stale, address, ask, go, link } from "./wire.js";

const VIEWS = { charts, steps, groups, rollouts, rollout, runs };
const TABS = [["charts", "Charts"], ["steps", "Steps"], ["groups", "Groups"], ["rollouts", "Rollouts"]];
const EVERY_MS = 2000;

const top = document.getElementById("top");
const main = document.getElementById("main");
const notice = document.getElementById("notice");

let shown = null; // { refresh, leave }
let key = "";
let stamp = "";

async function show() {
  try {
    await draw(address());
  } catch (error) {
    if (!(error instanceof Stale)) tell(error.message);
  }
}

async function draw(words) {
  if (!words.run) {
    const found = await ask("runs");
    if (found.single && found.runs.length) return go({ ...words, run: found.runs[0].name }, { replace: true });
  }
  const view = words.run ? (VIEWS[words.view] ? words.view : "charts") : "runs";
  const wanted = view === "rollout" ? `rollout ${words.run} ${words.id}` : `${view} ${words.run}`;
  if (shown === null || wanted !== key) {
    shown?.leave?.();
    key = wanted;
    shown = VIEWS[view]();
    main.replaceChildren(shown.element);
  }
  const [problem] = await Promise.all([header(view, words), shown.refresh(words)]);
  tell(problem);
}

async function header(view, words) {
  document.title = [words.id, words.run, "Warren"].filter(Boolean).join(" · ");
  const brand = h("a", { href: "?", class: "brand" }, "Warren");
  if (!words.run) {
    top.replaceChildren(brand);
    return "";
  }
  const known = await ask("overview", { run: words.run });
  stamp = known.stamp;
  const of = known.steps_asked ? `/${num(known.steps_asked)}` : "";
  const state = h("div", { class: "state" },
    known.ended ? badge("ended", "scored") : h("span", { class: "live", title: "new data is shown as it comes" }, "live"),
    h("span", {}, `step ${num(known.step)}${of}${known.version < 0 ? "" : ` · v${known.version}`}`),
    known.known < known.arrived
      ? h("span", { class: "muted" }, `reading rollouts ${Math.floor((100 * known.known) / known.arrived)} %`)
      : h("span", { class: "muted" }, `${num(known.rollouts)} rollouts`));
  const tabs = TABS.map(([name, title]) => h("a", {
    href: link({ run: words.run, view: name }),
    "aria-current": name === view || (name === "rollouts" && view === "rollout") ? "page" : null,
  }, title));
  replace(top, brand, h("span", { class: "run" }, words.run), h("nav", {}, tabs), state);
  return known.problem;
}

function tell(text) {
  notice.hidden = text === "";
  notice.textContent = text;
}

async function poll() {
  if (!document.hidden && address().run && shown !== null) {
    try {
      const found = await ask("stamp", { run: address().run });
      if (found.stamp !== stamp) await show();
    } catch (error) {
      if (!(error instanceof Stale)) tell(error.message);
    }
  }
  setTimeout(poll, EVERY_MS);
}

// Links within the page change the address without loading it again.
addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href^='?']");
  if (!anchor || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", anchor.getAttribute("href"));
  scrollTo(0, 0);
  show();
});
addEventListener("popstate", show);
addEventListener("moved", show);
show();
setTimeout(poll, EVERY_MS);
