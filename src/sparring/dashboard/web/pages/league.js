// A game's league: the ladder, who beats whom, how transitive that is, how ratings came to be, and the newest matches.

import { Chart } from "../chart.js";
import { $, ago, brief, count, h, poll, s, say, server, show } from "../page.js";
import { nameOf, tagOf } from "../members.js";

const asked = new URLSearchParams(location.search).get("game");
const chart = new Chart($("chart"));
const SHOWN = 5; // curves at first: more would hide each other
const MOST_MATCHES = 10;
const hidden = new Map(); // member → whether the person hid it
let drawn = ""; // what the chart shows
let champion = null;
let persons = 0;

const signed = (elo) => `${elo < 0 ? "−" : "+"}${Math.abs(Math.round(elo))}`;
const percent = (x) => `${Math.round(100 * x)}%`;

function member(name) {
  const [word, kind] = tagOf(name, { champion: name === champion, persons });
  return [h("span", { class: !name.startsWith("script:") && name !== "people" && "mono", title: name }, nameOf(name)), " ",
    word && h("span", { class: `tag ${kind}` }, word)];
}

/** A line from `low` to `high` with a dot, on the scale of the whole ladder. */
function interval(row, [from, to]) {
  const x = (elo) => 8 + ((elo - from) / Math.max(1, to - from)) * 204;
  const [low, at, high] = [row.low, row.elo, row.high].map(x);
  return s("svg", { class: "interval", viewBox: "0 0 220 20", "aria-hidden": "true" },
    from < 0 && to > 0 && s("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 20 }),
    s("line", { class: "reach", x1: low, x2: Math.max(high, low + 0.5), y1: 10, y2: 10 }),
    s("circle", { cx: at, cy: 10, r: 4.5 }));
}

function meter(share) {
  const bar = h("i", {});
  bar.style.width = percent(share);
  return [h("span", { class: "number" }, percent(share)), h("span", { class: "meter", "aria-hidden": "true" }, bar)];
}

function ladder(rows) {
  const ends = [Math.min(...rows.map((row) => row.low)), Math.max(...rows.map((row) => row.high))];
  const cell = (...children) => h("td", {}, children);
  const heads = [h("span", { class: "unseen" }, "rank"), "member", "Elo", "95 % interval", "openskill", "games", "points",
    "Nash", "α-rank"];
  const row = (one, at) => h("tr", { "data-member": one.member },
    cell(h("span", { class: "number quiet" }, String(at + 1))),
    cell(member(one.member)),
    cell(h("strong", { class: "number" }, signed(one.elo))),
    cell(interval(one, ends), h("span", { class: "under number" }, `${signed(one.low)} to ${signed(one.high)}`)),
    cell(h("span", { class: "number" }, `${one.mu.toFixed(1)} ± ${one.sigma.toFixed(1)}`)),
    cell(h("span", { class: "number" }, brief(one.games))),
    cell(meter(one.points)),
    cell(h("span", { class: "number" }, percent(one.nash)),
      h("span", { class: "under number" }, `${percent(one.nash_skill)} against it`)),
    cell(h("span", { class: "number" }, percent(one.alpha_rank))));
  return h("div", { class: "scroll" }, h("table", { class: "ladder" },
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map(row))));
}

function matrix({ ladder: rows, wins, draws }) {
  const cell = (a, b) => {
    if (a === b) return h("td", { class: "self" });
    const [won, drew, lost] = [wins[a][b], draws[a][b], wins[b][a]].map((n) => Math.round(n));
    const games = won + drew + lost;
    if (!games) return h("td", { class: "none", title: "they have not met" }, "·");
    const share = (won + drew / 2) / games;
    const said = `${nameOf(rows[a].member)} against ${nameOf(rows[b].member)}: ${won} won, ${drew} drawn, ${lost} lost`;
    const found = h("td", { class: "met", title: said, "data-games": games }, String(Math.round(100 * share)));
    const colour = share >= 0.5 ? "--series-1" : "--series-0";
    found.style.background = `color-mix(in srgb, var(${colour}) ${Math.round(Math.abs(share - 0.5) * 110)}%, var(--card))`;
    return found;
  };
  const head = h("tr", {}, h("td", {}), rows.map((row, at) => h("th", { scope: "col", title: row.member }, String(at + 1))));
  const line = (row, a) => h("tr", {}, h("th", { scope: "row", title: row.member },
    h("span", { class: "quiet number" }, `${a + 1} `), nameOf(row.member)), rows.map((_, b) => cell(a, b)));
  return h("table", { class: "heat" }, h("thead", {}, head), h("tbody", {}, rows.map(line)));
}

/** Layers of Nash equilibria, the strongest above, each as wide as it has members. */
function top({ top: { layers, transitive, cyclic, cyclic_triples: cycles, triples } }) {
  const widest = Math.max(...layers.map((layer) => layer.members.length));
  const high = Math.min(34, Math.max(14, 300 / layers.length)), width = 360, half = 110;
  const bar = (layer, at) => {
    const wide = Math.max(14, (layer.members.length / widest) * 2 * half);
    const y = at * high;
    return s("g", { class: at ? "layer" : "layer best" }, s("title", {}, layer.members.map(nameOf).join(", ")),
      s("rect", { x: width / 2 - wide / 2, y: y + 2, width: wide, height: high - 4, rx: 5 }),
      s("text", { class: "inside", x: width / 2, y: y + high / 2 + 4, "text-anchor": "middle" }, String(layer.members.length)),
      s("text", { x: width - 4, y: y + high / 2 + 4, "text-anchor": "end" }, percent(layer.strength)));
  };
  const label = `Members in each of ${layers.length} layers, the strongest first: ${layers.map((one) => one.members.length).join(", ")}`;
  const words = cycles ? `${cycles} of ${triples} triples go in a circle.`
    : triples ? `None of ${triples} triples goes in a circle.` : "No three have met each other yet.";
  const parts = h("span", { class: "share wide", "aria-hidden": "true" });
  for (const [kind, part] of [["transitive", transitive], ["cyclic", cyclic]]) {
    const one = h("i", { class: `part-${kind}` });
    one.style.width = percent(part);
    parts.append(one);
  }
  return [s("svg", { class: "top-layers", viewBox: `0 0 ${width} ${layers.length * high}`, role: "img", "aria-label": label },
    layers.map(bar)),
  parts, h("p", { class: "small" }, h("strong", {}, percent(transitive)),
    ` of the results' variance is explained by one number for each member, ${percent(cyclic)} is not. ${words}`),
  h("p", { class: "small quiet" }, "Each layer is a Nash equilibrium among those below the last one: the wider, the more " +
    "ways to be equally strong. At the right its share of points.")];
}

function curves(standings) {
  const names = Object.keys(standings.curves);
  const shown = (name, at) => !(hidden.get(name) ?? at >= SHOWN);
  const now = JSON.stringify([standings.matches, standings.people_games, names.map(shown), $("chart").clientWidth]);
  if (now === drawn) return;
  drawn = now;
  const series = names.map((name, colour) => ({ name: nameOf(name), colour, shown: shown(name, colour), rows: standings.curves[name] }))
    .filter((one) => one.shown)
    .map(({ rows, ...one }) => ({
      ...one, exact: true, points: rows.map((row) => [row.games, row.elo]),
      band: rows.map((row) => [row.games, row.low, row.high]),
    }));
  chart.draw(series, { unit: (n) => `${brief(n)} games`, label: "Elo after so many games of the league" });
  const chip = (name, at) => {
    const input = h("input", { type: "checkbox", value: name, checked: shown(name, at) });
    input.addEventListener("change", () => { hidden.set(name, !input.checked); curves(standings); });
    return h("label", {}, input, h("span", { class: `dot fill-${at}` }), h("span", { title: name }, nameOf(name)));
  };
  const focused = document.activeElement?.value;
  $("members").replaceChildren($("members").querySelector("legend"), ...names.map(chip));
  [...$("members").querySelectorAll("input")].find((input) => input.value === focused)?.focus();
}

function newest(game, matches) {
  const row = (one) => {
    const games = one.wins + one.draws + one.losses;
    const bar = h("span", { class: "share", "aria-hidden": "true" });
    for (const [kind, n] of [["won", one.wins], ["drawn", one.draws], ["lost", one.losses]]) {
      if (!n) continue;
      const part = h("i", { class: `part-${kind}` });
      part.style.width = percent(n / games);
      bar.append(part);
    }
    const cell = (label, ...children) => h("td", { "data-label": label }, h("div", {}, children));
    return h("tr", { "data-match": one.id },
      cell("when", h("span", { class: "quiet" }, ago(one.played_at_ms))),
      cell("match", member(one.first), h("span", { class: "quiet" }, " against "), member(one.second)),
      cell("result", h("span", { class: "number" }, `${one.wins} – ${one.draws} – ${one.losses}`), bar),
      cell("distinct", h("span", { class: "number" }, `${one.distinct} of ${games}`)),
      cell("", h("a", { class: "button plain small-button", href: `/league/${encodeURIComponent(game)}/${one.id}` }, "Watch")));
  };
  if (!matches.length) return h("p", { class: "pad quiet" }, "No match of models or scripts yet.");
  const heads = ["when", "match", "won – drawn – lost", "distinct games", h("span", { class: "unseen" }, "watch")];
  return h("div", { class: "scroll" }, h("table", { class: "stacks ladder" },
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, matches.slice(0, MOST_MATCHES).map(row))));
}

function counters(standings) {
  const { ladder: rows, matches, games, people_games: played } = standings;
  const all = [["members", count(rows.length)], ["matches", count(matches)], ["games", brief(games)],
    ["persons", count(standings.persons)], ["games of people", brief(played)]];
  return all.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}

poll(async () => {
  const { games } = await server.get("/api/games");
  const rivals = games.filter((game) => game.seats > 1);
  const game = asked ?? (rivals.reduce((most, one) => (one.models > (most?.models ?? -1) ? one : most), null) ?? games[0])?.id;
  if (!game) return;
  champion = games.find((one) => one.id === game)?.champion?.model ?? null;
  const tab = ({ id }) => h("a", { href: `/league?game=${encodeURIComponent(id)}`, "aria-current": id === game && "page" }, id);
  show($("tabs"), rivals.map(tab));
  const { standings, newest: matches } = await server.get(`/api/league/${encodeURIComponent(game)}`);
  $("empty").hidden = standings !== null;
  $("league").hidden = standings === null;
  if (standings === null) {
    show($("empty"), h("div", { class: "empty" }, h("strong", {}, "No match yet"),
      h("p", {}, "Let its models and scripts play each other:"), h("code", {}, `spar league ${game}`)));
    return;
  }
  persons = standings.persons;
  show($("counters"), counters(standings));
  say($("anchor"), standings.anchor ? `${nameOf(standings.anchor)} play has 0 Elo` : "the mean has 0 Elo");
  show($("ladder"), ladder(standings.ladder));
  show($("matrix"), matrix(standings));
  show($("top"), top(standings));
  show($("newest"), newest(game, matches));
  curves(standings);
}, 4);
