// What is there to play, how much was played, and who is champion.

import { $, ago, brief, count, h, poll, s, say, server, short, show } from "../page.js";
import { hour } from "../minutes.js";

const ABOUT = {
  "connect-four": ["Connect Four", "Four in a line wins. The classic that looks simple until it isn't.", fourArt],
  duel: ["Duel", "Two paddles, one ball, first to five. It gets faster with every return.", duelArt],
  cartpole: ["CartPole", "Keep the pole upright for five hundred ticks. Harder than it looks, for people.", cartArt],
};
const ORDER = Object.keys(ABOUT);

function fourArt() {
  const rows = [".......", "...yy..", "..ybb..", ".bbyyy."];
  const whose = { ".": "hole", y: "you", b: "bot" };
  const hole = (sign, column, row) =>
    s("circle", { class: `art-${whose[sign]}`, cx: 83 + column * 26, cy: 48 + row * 28, r: 10.5 });
  return s("svg", { viewBox: "0 0 320 180", "aria-hidden": "true" },
    s("rect", { class: "art-frame", x: 62, y: 28, width: 196, height: 124, rx: 12 }),
    rows.map((line, row) => [...line].map((sign, column) => hole(sign, column, row))));
}

function duelArt() {
  return s("svg", { viewBox: "0 0 320 180", "aria-hidden": "true" },
    s("line", { class: "art-line", x1: 160, y1: 18, x2: 160, y2: 162, "stroke-dasharray": "5 7" }),
    s("rect", { class: "art-you", x: 40, y: 88, width: 9, height: 46, rx: 4 }),
    s("rect", { class: "art-bot", x: 271, y: 42, width: 9, height: 46, rx: 4 }),
    [0.15, 0.3, 0.5, 1].map((opacity, i) =>
      s("circle", { class: "art-ink", cx: 150 + i * 22, cy: 106 - i * 9, r: 7, opacity })));
}

function cartArt() {
  return s("svg", { viewBox: "0 0 320 180", "aria-hidden": "true" },
    s("line", { class: "art-line", x1: 30, y1: 142, x2: 290, y2: 142 }),
    s("rect", { class: "art-ink", x: 132, y: 122, width: 56, height: 26, rx: 6 }),
    s("line", { class: "art-pole", x1: 160, y1: 122, x2: 174, y2: 38 }));
}

function championOf(game) {
  if (game.champion)
    return [h("span", { class: "tag champion" }, `champion no. ${game.champion.counter}`), " ",
      h("a", { href: `/models?game=${encodeURIComponent(game.id)}`, class: "mono small" }, short(game.champion.model)),
      h("span", { class: "quiet small" }, ` since ${ago(game.champion.issued_at_ms)}`)];
  const training = game.running ? "training has begun…" : ["train it with ", h("code", {}, `spar train ${game.id}`)];
  return [h("span", { class: "quiet small" }, "no champion yet: playing at random; ", training)];
}

function card(game) {
  const plain = `${game.seats} seat${game.seats === 1 ? "" : "s"}, ${game.turns} turns, version ${game.version}.`;
  const [title, about, art] = ABOUT[game.id] ?? [game.id, plain, null];
  const play = game.playable ? h("a", { class: "button", href: `/play/${game.id}` }, "Play")
    : h("span", { class: "quiet small" }, "played in its own client");
  const numbers = [["steps", game.steps], ["in people's games", game.people_steps], ["episodes", game.episodes]];
  return h("li", { class: "game card", "data-game": game.id },
    art && h("figure", {}, art()),
    h("div", { class: "body" },
      h("h2", {}, title), h("p", { class: "quiet" }, about), h("p", { class: "current-champion" }, championOf(game)),
      h("dl", {}, numbers.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, brief(value))))),
      h("div", { class: "actions" },
        play,
        h("a", { class: "button plain", href: `/learning?game=${encodeURIComponent(game.id)}` }, "Learning"))));
}

poll(async () => {
  const { games, running } = await server.get("/api/games");
  const rank = (game) => (ORDER.indexOf(game.id) + ORDER.length + 1) % (ORDER.length + 1);
  games.sort((a, b) => rank(a) - rank(b));
  show($("games"), games.map(card));
  const sum = (key) => games.reduce((total, game) => total + game[key], 0);
  say($("steps"), count(sum("steps")));
  say($("people"), count(sum("people_steps")));
  say($("episodes"), count(sum("episodes")));
  say($("models"), count(sum("models")));
  say($("running"), count(running));
}, 2);

poll(hour($("hour"), $("hour-game"), $("minutes")), 5);
