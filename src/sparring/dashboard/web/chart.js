// A line chart of our own: several runs, axes with round numbers, values under the pointer. SVG, so that the
// style sheet colours it, dark mode included, and it is sharp at any size.

import { figure, h, s } from "./page.js";

const LEFT = 56, RIGHT = 16, TOP = 16, BOTTOM = 40;
const MOST_POINTS = 400;

/** Draws `series`: [{name, colour, points: [[x, y]…]}]; `goal` is a dashed line, `unit` formats x. A series with
 * `band`: [[x, low, high]…] has it behind its line; an `exact` one is not smoothed. */
export class Chart {
  constructor(root) {
    this.root = root;
    this.svg = s("svg", { role: "img", "aria-label": "Nothing to draw yet" });
    this.tip = h("div", { class: "tip", hidden: true });
    root.append(this.svg, this.tip);
    this.svg.addEventListener("pointermove", (event) => this.#hover(event));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.cross = null;
  }

  draw(series, { unit = figure, steps = [1, 2, 5, 10], label = "", goal = null } = {}) {
    this.series = series.map((one) => ({ ...one, smooth: one.exact ? one.points : smoothed(thinned(one.points)) }));
    this.width = Math.max(300, this.root.clientWidth - 24);
    this.height = Math.min(380, Math.max(240, this.width * 0.5));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.unit = unit;
    this.steps = steps;
    const xs = range(series.flatMap((one) => one.points.map(([x]) => x)), 0, 10);
    const values = series.flatMap((one) => [...one.points, ...(one.band ?? [])].flatMap(([, ...y]) => y));
    const ys = range(goal === null ? values : [...values, goal], null, 1);
    this.x = scale(xs, LEFT, this.width - RIGHT);
    this.y = scale(padded(ys), this.height - BOTTOM, TOP);
    const summary = series.map((one) => `${one.name}: ${figure(one.points.at(-1)?.[1])}`).join("; ");
    this.svg.setAttribute("aria-label", `${label}. Last values: ${summary}`);
    this.svg.replaceChildren(...this.#axes(), ...(goal === null ? [] : [this.#goal(goal)]), ...this.#lines());
    this.cross = null;
  }

  #axes() {
    const parts = [];
    for (const tick of ticks(this.y.domain, 5)) {
      const y = this.y(tick);
      parts.push(s("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }));
      parts.push(s("text", { class: "axis", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, figure(tick)));
    }
    for (const tick of ticks(this.x.domain, this.width / 110, this.steps)) {
      const x = this.x(tick);
      const y = this.height - BOTTOM + 22;
      parts.push(s("text", { class: "axis", x, y, "text-anchor": "middle" }, this.unit(tick)));
    }
    return parts;
  }

  #goal(goal) {
    return s("line", { class: "goal", x1: LEFT, x2: this.width - RIGHT, y1: this.y(goal), y2: this.y(goal) });
  }

  #lines() {
    const at = ([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
    const path = (points) => `M${points.map(at).join("L")}`;
    const band = (rows) => path([...rows.map(([x, low]) => [x, low]), ...rows.map(([x, , high]) => [x, high]).reverse()]);
    const there = this.series.filter((one) => one.points.length);
    const bands = there.filter((one) => one.band).map((one) => s("path", { class: `band fill-${one.colour}`, d: `${band(one.band)}Z` }));
    return bands.concat(there.flatMap((one) => [
      !one.exact && s("path", { class: `raw stroke-${one.colour}`, d: path(thinned(one.points)) }),
      s("path", { class: `line stroke-${one.colour}`, d: path(one.smooth), "data-points": one.points.length }),
      this.#dot(one.colour, one.smooth.at(-1), 3.5),
    ]).filter(Boolean));
  }

  #dot(colour, [x, y], r) {
    return s("circle", { class: `fill-${colour}`, r, cx: this.x(x), cy: this.y(y) });
  }

  #hover(event) {
    if (!this.x) return;
    const box = this.svg.getBoundingClientRect();
    const at = this.x.back(((event.clientX - box.left) / box.width) * this.width);
    const rows = this.series.map((one) => [one, nearest(one.smooth, at)]).filter(([, point]) => point);
    if (!rows.length) return;
    const x = this.x(nearestX(rows, at));
    this.cross?.remove();
    this.cross = s("g", {}, s("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }),
      rows.map(([one, point]) => this.#dot(one.colour, point, 4)));
    this.svg.append(this.cross);
    const head = h("div", {}, this.unit(nearestX(rows, at)));
    this.tip.replaceChildren(head, ...rows.map(([one, [, y]]) =>
      h("div", {}, h("span", { class: `dot fill-${one.colour}` }), one.name, h("b", {}, figure(y)))));
    this.tip.hidden = false;
    const left = (x / this.width) * box.width;
    this.tip.style.top = "24px";
    this.tip.style.left = `${left > box.width / 2 ? Math.max(0, left - this.tip.offsetWidth - 4) : left + 28}px`;
  }

  #leave() {
    this.cross?.remove();
    this.cross = null;
    this.tip.hidden = true;
  }
}

/** A mean over neighbours on both sides, so that the line does not lag; its reach grows with the curve. */
function smoothed(points) {
  const reach = Math.min(15, Math.floor(points.length / 25));
  return points.map(([x], i) => {
    let sum = 0, weight = 0;
    const own = Math.min(reach, i, points.length - 1 - i); // as far to the left as to the right
    for (let k = -own; k <= own; k++) {
      const w = own + 1 - Math.abs(k);
      sum += w * points[i + k][1];
      weight += w;
    }
    return [x, sum / weight];
  });
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

/** Round numbers inside the range: one of `steps` apart, times a power of ten where steps end at ten. */
function ticks([from, to], about, steps = [1, 2, 5, 10]) {
  const raw = (to - from) / about;
  const power = steps.at(-1) === 10 ? 10 ** Math.floor(Math.log10(raw)) : 1;
  const step = (steps.find((m) => m * power >= raw) ?? steps.at(-1)) * power;
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
