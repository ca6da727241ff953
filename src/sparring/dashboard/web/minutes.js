// The last hour of one game as a sink counted it: four rows of bars, one bar for each minute.

import { brief, figure, h, s, server, show } from "./page.js";

const BACK = 60; // minutes
const MINUTE_MS = 60_000;
const WIDTH = 360, HEIGHT = 56;
const seconds = (ms) => `${figure(ms / 1000)} s`;
const ROWS = [
  ["steps", "steps a minute", (minute) => minute.steps, brief],
  ["players", "players", (minute) => minute.players, brief],
  ["return", "mean return", (minute) => minute.mean_return, figure],
  ["lag", "from receipt to the store", (minute) => minute.lag_ms, seconds],
];

/** What to poll: it fills the section, and hides it where no sink counts. */
export function hour(section, choice, box) {
  let chosen = null;
  let latest = null;
  const draw = () => {
    const names = Object.keys(latest.games);
    section.hidden = names.length === 0;
    if (section.hidden) return;
    if (!names.includes(chosen)) chosen = busiest(latest.games);
    show(choice, names.map((name) => h("option", { value: name }, name)));
    choice.value = chosen;
    const byMinute = new Map(latest.games[chosen].map((minute) => [minute.minute_ms, minute]));
    const last = Math.floor(latest.now_ms / MINUTE_MS) * MINUTE_MS;
    const minutes = Array.from({ length: BACK }, (_, i) => byMinute.get(last - (BACK - 1 - i) * MINUTE_MS) ?? null);
    show(box, ROWS.map((row, colour) => figureOf(row, minutes, colour)));
  };
  choice.addEventListener("change", () => { chosen = choice.value; draw(); });
  return async () => {
    latest = await server.get("/api/minutes");
    draw();
  };
}

function busiest(games) {
  const steps = (name) => games[name].reduce((sum, minute) => sum + minute.steps, 0);
  return Object.keys(games).reduce((best, name) => (steps(name) > steps(best) ? name : best));
}

function figureOf([key, title, value, say], minutes, colour) {
  const values = minutes.map((minute) => (minute === null ? null : value(minute)));
  const known = values.filter((one) => one !== null);
  const now = known.at(-1) ?? null;
  const high = Math.max(0, ...known), low = Math.min(0, ...known);
  const said = known.length ? `latest ${say(now)}, highest ${say(high)}` : "none";
  return h("div", { "data-figure": key },
    h("h3", {}, title), h("p", { class: "now" }, now === null ? "–" : say(now)),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${said}` },
      bars(values, low, high, say, colour)),
    h("p", { class: "ends" }, h("span", {}, "an hour ago"), h("span", {}, "now")));
}

function bars(values, low, high, say, colour) {
  const step = WIDTH / values.length, span = high - low || 1;
  const y = (value) => HEIGHT - 1 - ((value - low) / span) * (HEIGHT - 4);
  const bar = (value, i) => {
    if (value === null) return null;
    const [top, bottom] = [Math.min(y(value), y(0)), Math.max(y(value), y(0))];
    const ago = values.length - 1 - i;
    const size = { x: i * step + 0.75, y: top, width: step - 1.5, height: Math.max(1.5, bottom - top) };
    return s("rect", { class: `fill-${colour}`, ...size },
      s("title", {}, `${ago ? `${ago} min ago` : "this minute"}: ${say(value)}`));
  };
  return [s("line", { class: "base", x1: 0, x2: WIDTH, y1: y(0), y2: y(0) }), values.map(bar)];
}
