// One game of a match, move by move: the server plays the match again from its seed, the page shows what was done.

import { nameOf } from "../members.js";
import { $, ago, h, isForGame, linked, say, server, show } from "../page.js";
import { SparringError } from "../server.js";

const BOARDS = { // games that have a board here, and how many ticks a second are shown
  "connect-four": ["../boards/connect_four.js", "../games/connect_four.js", 1.6],
  duel: ["../boards/duel.js", "../games/duel.js", 30],
};
const [game, match] = location.pathname.split("/").slice(-2).map(decodeURIComponent);

/** A game that has no board here: its moves as text. */
class MoveList {
  constructor(root) {
    this.list = h("ol", { class: "moves" });
    root.append(this.list);
  }

  load({ ticks }) {
    const words = (tick) => tick.map((action) => (action === null ? "–" : JSON.stringify(action))).join("   ");
    show(this.list, ticks.map((tick, at) => h("li", {}, `${String(at + 1).padStart(4)}  ${words(tick)}`)));
    this.ends = ticks.length;
  }

  draw(at) {
    [...this.list.children].forEach((line, n) => { line.hidden = n >= at; });
    this.list.scrollTop = this.list.scrollHeight;
  }
}

/** A turn-based game on its board. */
class TurnBased {
  constructor(root, board, Game) {
    this.board = new board.Board(root, () => {});
    root.querySelector(".columns").remove(); // nobody moves here
    this.game = new Game();
  }

  load({ seed, ticks, seats }) {
    Object.assign(this, { seed: BigInt(seed), ticks, person: seats[0], ends: ticks.length });
    this.game.reset(this.seed);
    this.board.draw(this.game, this.person);
  }

  draw(at) {
    this.game.reset(this.seed);
    for (const actions of this.ticks.slice(0, at)) this.game.step(actions);
    this.board.drawn.forEach((stone) => stone.classList.remove("won"));
    this.board.draw(this.game, this.person);
    this.board.celebrate(this.game);
  }
}

/** A game that runs by the clock: every tick is computed once, then any can be drawn. */
class RealTime {
  constructor(root, board, Game) {
    this.board = new board.Board(root, () => {});
    this.game = new Game();
  }

  load({ seed, ticks, seats }) {
    this.game.reset(BigInt(seed));
    this.looks = [this.board.look(this.game)];
    for (const actions of ticks) {
      this.game.step(actions);
      this.looks.push(this.board.look(this.game));
    }
    Object.assign(this, { person: seats[0], ends: ticks.length });
  }

  draw(at) {
    const whole = Math.floor(at), now = this.looks[Math.min(whole + 1, this.ends)];
    this.board.draw(this.looks[whole], at > whole ? now : this.looks[whole], at - whole, { person: this.person });
  }
}

let shown = null; // what draws the game
let said = null; // the server's answer
let at = 0, playing = false, speed = 2;
let number = Number(new URLSearchParams(location.search).get("game") ?? 0) || 0;

async function load(which) {
  said = await server.get(`/api/league/${encodeURIComponent(game)}/matches/${encodeURIComponent(match)}?number=${which}`);
  number = which;
  linked(true);
  describe();
  shown.load(said);
  $("transport").hidden = false;
  $("seek").max = String(shown.ends);
  at = 0;
  play(true);
}

function describe() {
  const { match: about, points, same } = said;
  const [first, second] = [about.first, about.second].map(nameOf);
  document.title = `${first} against ${second} · Sparring`;
  say($("title"), `${first} against ${second}`);
  say($("about"), `${game}, played ${ago(about.played_at_ms)}`);
  const side = (whose, name, full) => h("li", {}, h("span", { class: `disc ${whose}` }), h("strong", { title: full }, name));
  show($("sides"), h("ul", { class: "sides" }, side("you", first, about.first), side("bot", second, about.second)));
  const tally = [["won", about.wins], ["drawn", about.draws], ["lost", about.losses]];
  show($("tally"), tally.map(([word, n]) => h("div", {}, h("dt", {}, word), h("dd", {}, String(n)))));
  say($("same"), same ? `Played again just now: every move of its ${points.length} games was the same.`
    : "Played again just now, it did not go the same: a member or this machine changed.");
  say($("legend"), `${first} won the red ones, ${second} the yellow ones.`);
  const round = (score, at) => h("a", {
    href: `?game=${at}`, "aria-current": at === number && "true", "data-game": at,
    class: score > 0.5 ? "won" : score < 0.5 ? "lost" : "drawn",
    "aria-label": `Game ${at + 1}, ${first} ${score > 0.5 ? "won" : score < 0.5 ? "lost" : "drew"}`,
  }, String(at + 1));
  show($("rounds"), points.map(round));
  const facts = [["match", match], ["seed of the match", String(about.seed)], ["seed of the game", said.seed],
    ["again in a terminal", `spar replay ${match.slice(0, 12)}`]];
  show($("facts"), facts.map(([word, value]) => [h("dt", {}, word), h("dd", { class: "mono small" }, value)]));
  $("to-league").href = `/league?game=${encodeURIComponent(game)}`;
}

function play(on) {
  if (on && at >= shown.ends) at = 0;
  playing = on;
  draw();
}

function seek(to) {
  playing = false;
  at = Math.max(0, Math.min(shown.ends, to));
  draw();
}

function draw() {
  shown.draw(at);
  const whole = Math.floor(at);
  $("seek").value = String(whole);
  say($("play"), playing ? "Pause" : whole >= shown.ends ? "Again" : "Play");
  const head = `Game ${number + 1} of ${said.points.length}`;
  say($("status"), whole >= shown.ends ? `${head}: ${ending()}` : speed < 10 ? `${head}: move ${whole} of ${shown.ends}` : head);
}

function ending() {
  const [first, second] = [said.match.first, said.match.second].map(nameOf);
  const score = said.points[number];
  return score > 0.5 ? `${first} wins` : score < 0.5 ? `${second} wins` : "a draw";
}

function run() {
  let before = performance.now();
  let pending = 0;
  const frame = (now) => {
    const passed = Math.min(250, now - before) / 1000; // a page that slept does not catch up
    before = now;
    if (playing && at < shown.ends) {
      pending += passed * speed;
      const step = speed < 10 ? Math.floor(pending) : pending; // moves fall one by one, ticks flow
      if (step > 0) {
        pending -= step;
        at = Math.min(shown.ends, at + step);
        if (at >= shown.ends) playing = false;
        draw();
      }
    } else pending = 0;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

function controls() {
  $("play").addEventListener("click", () => play(!playing));
  $("first").addEventListener("click", () => seek(0));
  $("last").addEventListener("click", () => seek(shown.ends));
  $("back").addEventListener("click", () => seek(Math.ceil(at) - 1));
  $("next").addEventListener("click", () => seek(Math.floor(at) + 1));
  $("seek").addEventListener("input", (event) => seek(Number(event.target.value)));
  $("rounds").addEventListener("click", (event) => {
    const link = event.target.closest("a[data-game]");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    history.replaceState(null, "", link.getAttribute("href"));
    load(Number(link.dataset.game)).catch(failed);
  });
  document.addEventListener("keydown", (event) => {
    if (!isForGame(event)) return;
    const what = { " ": () => play(!playing), ArrowLeft: () => seek(Math.ceil(at) - 1), ArrowRight: () => seek(Math.floor(at) + 1) };
    if (!what[event.key]) return;
    what[event.key]();
    event.preventDefault();
  });
}

function failed(error) {
  if (!(error instanceof SparringError)) throw error;
  linked(error.status !== 0, error);
  say($("status"), "This match cannot be shown.");
}

async function begin() {
  if (game in BOARDS) {
    const [boardPath, gamePath, perSecond] = BOARDS[game];
    const [board, rules] = await Promise.all([import(boardPath), import(gamePath)]);
    speed = perSecond;
    shown = new (perSecond < 10 ? TurnBased : RealTime)($("board"), board, rules.Game);
  } else shown = new MoveList($("board"));
  await load(number);
  controls();
  run();
}

begin().catch(failed);
