// One chart: lines over steps, drawn by hand as SVG. Arrow keys and the mouse read values.

import { h, num, s } from "./dom.js";

const [WIDTH, HEIGHT] = [360, 150];
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 8, 8, 18];

export function chart({ title, unit, lines }) {
  const xs = lines.flatMap((line) => line.x);
  const ys = lines.flatMap((line) => line.y).filter((value) => value !== null);
  const [firstX, lastX] = [Math.min(...xs), Math.max(...xs)];
  const ticks = niceTicks(Math.min(...ys), Math.max(...ys));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (value) => LEFT + ((value - firstX) / (lastX - firstX || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const area = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0",
    "aria-label": `${title}: ${lines.map((line) => `${line.label} ${num(last(line))}`).join(", ")}` },
  ticks.map((value) => [
    s("line", { class: value === 0 ? "grid zero" : "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    s("text", { class: "tick", x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, num(value))]).flat(),
  s("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, num(firstX)),
  s("text", { class: "tick", x: WIDTH - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, `step ${num(lastX)}`),
  lines.map((line, place) => draw(line, place, x, y)).flat(), cursor);
  const legend = h("figcaption");
  const read = (step) => {
    legend.replaceChildren(...caption(title, unit, lines, step));
    if (step === null) return cursor.setAttribute("visibility", "hidden");
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    cursor.setAttribute("visibility", "visible");
  };
  read(null);
  interact(area, lines, [firstX, lastX], read);
  return h("figure", { class: "chart" }, legend, area);
}

function draw(line, place, x, y) {
  const parts = [];
  let path = "";
  line.y.forEach((value, at) => {
    if (value === null) return;
    path += `${path ? "L" : "M"}${x(line.x[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    if (line.points || line.y.length === 1) {
      parts.push(s("circle", { class: `point s${place}`, cx: x(line.x[at]), cy: y(value), r: 2.6 }));
    }
  });
  return [s("path", { class: `line s${place}`, d: path }), ...parts];
}

function caption(title, unit, lines, step) {
  return [h("strong", {}, title), h("span", { class: "unit" }, step === null ? unit : `step ${num(step)}`),
    h("span", { class: "legend" }, lines.map((line, place) => h("span", { class: `key s${place}` },
      h("i"), line.label ? `${line.label} ` : "", h("b", {}, num(step === null ? last(line) : nearest(line, step))))))];
}

const last = (line) => line.y.findLast((value) => value !== null) ?? null;

function nearest(line, step) {
  let best = 0;
  line.x.forEach((value, at) => {
    if (Math.abs(value - step) < Math.abs(line.x[best] - step)) best = at;
  });
  return line.y[best];
}

function interact(area, lines, [first, final], read) {
  const steps = [...new Set(lines.flatMap((line) => line.x))].sort((one, other) => one - other);
  let at = steps.length;
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const inside = ((event.clientX - box.left) / box.width) * WIDTH;
    const wanted = first + ((inside - LEFT) / (WIDTH - LEFT - RIGHT)) * (final - first);
    read(steps.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), steps[0]));
  });
  area.addEventListener("pointerleave", () => read(null));
  area.addEventListener("blur", () => read(null));
  area.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    at = Math.min(steps.length - 1, Math.max(0, at + move));
    read(steps[at]);
  });
}

// Three to five round values around what is drawn.
export function niceTicks(low, high) {
  if (low > 0 && low < high * 0.6) low = 0;
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const [first, final] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  const ticks = [];
  for (let place = first; place <= final; place += 1) ticks.push(Number((place * step).toPrecision(12)));
  return ticks;
}
