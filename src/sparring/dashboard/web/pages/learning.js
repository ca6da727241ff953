// Learning curves as they grow, who was promoted, and CartPole balanced by the newest champion.

import { colours, drawCart, sharpen } from "../boards/cart.js";
import { Chart } from "../chart.js";
import { connect, SparringError } from "../client.js";
import { Game } from "../games/cartpole.js";
import { newSeed } from "../ids.js";
import { newer } from "../panel.js";
import { $, ago, brief, clock, figure, h, poll, say, server, short, show } from "../page.js";

const METRICS = {
  return_mean: "return per episode", partner_return_mean: "return against partners", loss: "loss",
  steps_per_s: "steps per second", episodes: "episodes",
};
const AXES = ["seconds", "env_steps", "updates", "return_sd"]; // not worth a curve
const GOALS = { "cartpole/return_mean": 475 };
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400];
const NO_PROMOTION = "No promotion yet. About once a minute a model is published; if not worse, it is promoted.";
const MOST_RUNS = 6;
const MOST_PROMOTIONS = 12;
const MOST_ROWS = 4000; // of one run, in this page

const curves = new Map(); // run → {next, rows}
const hiddenRuns = new Set();
const chart = new Chart($("chart"));
let runs = [];
let metric = null; // as chosen; null: what tells most about the game
let game = new URLSearchParams(location.search).get("game");

$("game").addEventListener("change", (event) => { game = event.target.value; refresh(); });
$("metric").addEventListener("change", (event) => { metric = event.target.value; draw(); });
$("over").addEventListener("change", draw);

async function refresh() {
  const [{ runs: all }, { promotions }] = await Promise.all([server.get("/api/runs"), server.get("/api/promotions")]);
  const games = [...new Set(all.map((run) => run.game))];
  game ??= (all.find((run) => run.state === "running") ?? all[0])?.game ?? null;
  if (game && !games.includes(game)) games.push(game);
  show($("game"), games.map((name) => h("option", { value: name, selected: name === game }, name)));
  if (game) $("game").value = game;
  runs = all.filter((run) => run.game === game).slice(0, MOST_RUNS);
  await Promise.all(runs.map((run) => follow(run.run)));
  const none = h("li", {}, h("span", {}), h("span", { class: "quiet" }, NO_PROMOTION));
  show($("log"), promotions.length ? promotions.slice(0, MOST_PROMOTIONS).map(promotion) : none);
  chips();
  metricChoices();
  draw();
}

async function follow(run) {
  const curve = curves.get(run) ?? { next: 0, rows: [] };
  curves.set(run, curve);
  const answer = await server.get(`/api/runs/${encodeURIComponent(run)}/metrics?after=${curve.next}`);
  if (answer.reset) curve.rows = [];
  curve.rows.push(...answer.rows);
  if (curve.rows.length > MOST_ROWS) curve.rows = curve.rows.filter((_, i) => i % 2 === 0);
  curve.next = answer.next;
}

function chips() {
  const chip = (run, i) => h("label", {},
    h("input", { type: "checkbox", value: run.run, checked: !hiddenRuns.has(run.run) }),
    h("span", { class: `dot fill-${i}` }), h("span", { title: run.run }, nameOf(run)),
    h("span", { class: `tag ${run.state}` }, standing(run)));
  const box = $("runs");
  const legend = box.querySelector("legend");
  const focused = document.activeElement?.value;
  box.replaceChildren(legend, ...runs.map(chip));
  for (const input of box.querySelectorAll("input")) {
    if (input.value === focused) input.focus();
    input.addEventListener("change", () => {
      hiddenRuns[input.checked ? "delete" : "add"](input.value);
      draw();
    });
  }
}

const BEGUN = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function standing(run) {
  return run.state === "running" ? `${brief(last(run, "steps_per_s") ?? 0)} steps/s` : run.state;
}

function nameOf(run) {
  return `${run.algo}, ${BEGUN.format(run.started_at_ms)}`;
}

function last(run, key) {
  return curves.get(run.run)?.rows.findLast((row) => typeof row[key] === "number")?.[key] ?? null;
}

function metricChoices() {
  const known = new Set(runs.flatMap((run) => Object.keys(curves.get(run.run)?.rows.at(-1) ?? {})));
  const extra = [...known].filter((key) => !(key in METRICS) && !AXES.includes(key));
  const named = Object.keys(METRICS).filter((key) => key === "return_mean" || known.has(key));
  show($("metric"), [...named, ...extra].map((key) => h("option", { value: key }, words(key))));
  // In self-play one's own return says little: both sides get better. Against past selves it says whether.
  const selfplay = runs.some((run) => last(run, "partner_return_mean") !== null);
  $("metric").value = metric ?? (selfplay ? "partner_return_mean" : "return_mean");
}

const words = (key) => METRICS[key] ?? key.replaceAll("_", " ");

function points(run, x, y) {
  const rows = curves.get(run.run)?.rows ?? [];
  return rows.filter((row) => Number.isFinite(row[x]) && Number.isFinite(row[y])).map((row) => [row[x], row[y]]);
}

function draw() {
  const key = $("metric").value || "return_mean", over = $("over").value;
  const series = runs.map((run, colour) => ({
    name: nameOf(run), colour, shown: !hiddenRuns.has(run.run),
    points: points(run, over, key),
  })).filter((one) => one.shown);
  const label = words(key);
  say($("measured"), label[0].toUpperCase() + label.slice(1));
  const drawn = series.some((one) => one.points.length);
  const axis = over === "seconds" ? { unit: clock, steps: CLOCK_STEPS } : { unit: brief };
  chart.draw(series, { ...axis, label, goal: (drawn && GOALS[`${game}/${key}`]) ?? null });
  let empty = $("no-runs");
  if (!empty) $("chart").prepend(empty = h("div", { id: "no-runs", class: "empty" }));
  empty.hidden = drawn;
  chart.svg.classList.toggle("unseen", !drawn);
  show(empty, h("strong", {}, runs.length ? "The first numbers are on their way" : "No run yet"),
    h("p", {}, runs.length ? "A run writes a line about once a second." : "Start one, and its curve is drawn here:"),
    ...(runs.length ? [] : [h("code", {}, "spar train cartpole --algo ppo")]));
}

function promotion(one) {
  const evidence = one.evidence;
  const rival = evidence.incumbent ? "the champion before it" : "random play";
  const theirs = evidence.incumbent_mean === null ? "" : `, ${rival} ${figure(evidence.incumbent_mean)}`;
  const judged = evidence.wins !== null
    ? ` after ${evidence.wins} wins, ${evidence.draws} draws and ${evidence.losses} losses against ${rival}`
    : ` with a mean of ${figure(evidence.mean)} over ${evidence.episodes} episodes${theirs}`;
  const model = h("a", { class: "mono", href: `/models?game=${encodeURIComponent(one.game)}` }, short(one.model));
  return h("li", {}, h("time", { datetime: new Date(one.at_ms).toISOString() }, ago(one.at_ms)),
    h("span", {}, h("strong", {}, one.game), ": model ", model, ` became champion no. ${one.counter}${judged}.`));
}

/** The cart beside the curve: the champion balances, one episode after another, and nothing is recorded. */
async function balance() {
  const key = await server.get("/api/games");
  const connection = await connect("", { game: "cartpole", trust: key.trust, token: server.token, champion: false });
  const cart = new Game();
  const best = { ticks: 0 };
  let shown = null;
  let at = performance.now();
  const start = async () => {
    if (await newer(connection)) await connection.refresh();
    if (shown !== connection.model) best.ticks = 0;
    shown = connection.model;
    cart.reset(BigInt(newSeed()));
  };
  await start();
  const frame = async (now) => {
    at = Math.max(at, now - 100); // a page that slept does not catch up
    for (; at < now; at += 20) {
      if (cart.ending[0] !== 0) {
        best.ticks = Math.max(best.ticks, Number(cart.tick));
        await new Promise((wake) => setTimeout(wake, 700));
        await start();
        at = performance.now();
        break;
      }
      const { action } = await connection.think(cart.observation(0));
      cart.step([action]);
    }
    paint(cart);
    const who = `balanced by champion no. ${connection.statistics().counter}`;
    say($("balancer"), connection.model ? `${who}, model ${short(connection.model)}`
      : "no champion yet: pushed at random until one is trained");
    say($("balance"), `tick ${cart.tick} of 500, best ${Math.max(best.ticks, Number(cart.tick))}`);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

function paint(cart) {
  const { context, width, height } = sharpen($("cart"));
  const { ink, you, line } = colours("ink", "you", "line");
  context.clearRect(0, 0, width, height);
  drawCart(context, cart.observation(0)["observation/state"], { top: 0, height, width, pole: you, ink, line });
}

poll(refresh, 1.5);
balance().catch((error) => {
  if (!(error instanceof SparringError)) throw error;
  say($("balancer"), error.message);
});
