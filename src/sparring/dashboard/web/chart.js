// A line chart of our own: several runs, axes with round numbers, values under the pointer. SVG, so that the
// style sheet colours it, dark mode included, and it is sharp at any size.

import { figure, h, s } from "./page.js";

const WIDTH = 760, HEIGHT = 380;
const LEFT = 56, RIGHT = 16, TOP = 16, BOTTOM = 40;
const MOST_POINTS = 400;

/** Draws `series`: [{name, colour, points: [[x, y]…]}]; `goal` is a dashed line, `unit` formats x. */
export class Chart {
  constructor(root) {
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.tip = h("div", { class: "tip", hidden: true });
    root.append(this.svg, this.tip);
    this.svg.addEventListener("pointermove", (event) => this.#hover(event));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.cross = null;
  }

  draw(series, { unit = figure, label = "", goal = null } = {}) {
    this.series = series.map((one) => ({ ...one, smooth: smoothed(thinned(one.points)) }));
    this.unit = unit;
    const xs = range(series.flatMap((one) => one.points.map(([x]) => x)), 0, 10);
    const ys = range([...series.flatMap((one) => one.points.map(([, y]) => y)), ...(goal === null ? [] : [goal])], null, 1);
    this.x = scale(xs, LEFT, WIDTH - RIGHT);
    this.y = scale(padded(ys), HEIGHT - BOTTOM, TOP);
    const summary = series.map((one) => `${one.name}: ${figure(one.points.at(-1)?.[1])}`).join("; ");
    this.svg.setAttribute("aria-label", `${label}. Last values: ${summary}`);
    this.svg.replaceChildren(...this.#axes(), ...(goal === null ? [] : [this.#goal(goal)]), ...this.#lines());
    this.cross = null;
  }

  #axes() {
    const parts = [];
    for (const tick of ticks(this.y.domain, 5)) {
      const y = this.y(tick);
      parts.push(s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
      parts.push(s("text", { class: "axis", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, figure(tick)));
    }
    for (const tick of ticks(this.x.domain, 6)) {
      const x = this.x(tick);
      parts.push(s("text", { class: "axis", x, y: HEIGHT - BOTTOM + 22, "text-anchor": "middle" }, this.unit(tick)));
    }
    return parts;
  }

  #goal(goal) {
    return s("line", { class: "goal", x1: LEFT, x2: WIDTH - RIGHT, y1: this.y(goal), y2: this.y(goal) });
  }

  #lines() {
    const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
    return this.series.filter((one) => one.points.length).flatMap((one) => [
      s("path", { class: `raw stroke-${one.colour}`, d: path(thinned(one.points)) }),
      s("path", { class: `line stroke-${one.colour}`, d: path(one.smooth), "data-points": one.points.length }),
      s("circle", { class: `fill-${one.colour}`, r: 3.5, cx: this.x(one.smooth.at(-1)[0]), cy: this.y(one.smooth.at(-1)[1]) }),
    ]);
  }

  #hover(event) {
    if (!this.x) return;
    const box = this.svg.getBoundingClientRect();
    const at = this.x.back(((event.clientX - box.left) / box.width) * WIDTH);
    const rows = this.series.map((one) => [one, nearest(one.smooth, at)]).filter(([, point]) => point);
    if (!rows.length) return;
    const x = this.x(nearestX(rows, at));
    this.cross?.remove();
    this.cross = s("g", {}, s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
      ...rows.map(([one, [px, py]]) => s("circle", { class: `fill-${one.colour}`, r: 4, cx: this.x(px), cy: this.y(py) })));
    this.svg.append(this.cross);
    const head = h("div", {}, this.unit(nearestX(rows, at)));
    this.tip.replaceChildren(head, ...rows.map(([one, [, y]]) =>
      h("div", {}, h("span", { class: `dot fill-${one.colour}` }), one.name, h("b", {}, figure(y)))));
    this.tip.hidden = false;
    const left = (x / WIDTH) * box.width;
    this.tip.style.top = "24px";
    this.tip.style.left = `${left > box.width / 2 ? Math.max(0, left - this.tip.offsetWidth - 4) : left + 28}px`;
  }

  #leave() {
    this.cross?.remove();
    this.cross = null;
    this.tip.hidden = true;
  }
}

/** An exponential mean whose reach grows with the curve, so that a short one is not blurred. */
function smoothed(points) {
  const keep = Math.min(0.9, points.length / (points.length + 40));
  let mean = points[0]?.[1] ?? 0;
  return points.map(([x, y]) => [x, (mean = keep * mean + (1 - keep) * y)]);
}

function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const step = (points.length - 1) / (MOST_POINTS - 1);
  return Array.from({ length: MOST_POINTS }, (_, i) => points[Math.round(i * step)]);
}

function range(values, low, span) {
  const from = low ?? Math.min(...values, Infinity);
  const to = Math.max(...values, -Infinity);
  if (!values.length) return [0, span];
  return to > from ? [from, to] : [from, from + span];
}

function padded([from, to]) {
  const air = (to - from) * 0.06;
  return [from >= 0 && from - air < 0 ? 0 : from - air, to + air];
}

function scale([from, to], start, end) {
  const f = (value) => start + ((value - from) / (to - from)) * (end - start);
  f.back = (at) => from + ((at - start) / (end - start)) * (to - from);
  f.domain = [from, to];
  return f;
}

/** Round numbers inside the range: 1, 2 or 5 times a power of ten apart. */
function ticks([from, to], about) {
  const raw = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const all = [];
  for (let i = Math.ceil(from / step); i * step <= to + step * 1e-9; i++) all.push(Number((i * step).toPrecision(12)));
  return all;
}

function nearest(points, x) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

function nearestX(rows, at) {
  return rows.map(([, point]) => point[0]).reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
}
