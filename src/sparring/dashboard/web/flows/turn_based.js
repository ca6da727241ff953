// A game by turns: the person moves, the bot answers, until it is over.

import { Match } from "../match.js";
import { $, say } from "../page.js";
import { NO_ADVICE, nextSeat } from "../panel.js";
import { SparringError } from "../server.js";

const THINKING_MS = 450; // an answer at once feels like a slap

export async function playTurnBased({ game, board, Game, connection, panel }) {
  const rules = new Game();
  let match = null, busy = true, advice = null;

  const view = new board.Board($("board"), (column) => move(column));
  panel.between = () => match === null || match.over || (match.untouched && !busy);
  panel.onAdvice = () => advise();
  $("again").addEventListener("click", () => start());

  async function start() {
    busy = true;
    match?.abandon();
    $("again").hidden = true;
    await panel.refresh();
    match = new Match(connection, rules, nextSeat(game), 2);
    say($("status"), match.person === 0 ? "You begin. Your move." : "The bot begins…");
    draw();
    await turn("").catch(stuck);
  }

  async function move(column) {
    if (busy || match.over || !rules.toAct[match.person]) return;
    if (!rules.legal(match.person)[column]) {
      say($("status"), `Column ${column + 1} is full. Choose another.`);
      return;
    }
    busy = true;
    act(column);
    await turn("").catch(stuck);
  }

  /** Where the server chooses the moves and does not answer: said, and a new game offered. */
  function stuck(error) {
    if (!(error instanceof SparringError)) throw error;
    say($("status"), `The bot cannot move: ${error.message}`);
    $("again").hidden = false;
  }

  /** The bot's moves, if it is its turn; then the person's. */
  async function turn(said) {
    while (!match.over && rules.toAct[match.bot]) {
      if (!match.untouched) say($("status"), "The bot is thinking…");
      const [column] = await Promise.all([match.botAction(), new Promise((wake) => setTimeout(wake, THINKING_MS))]);
      act(column);
      said = `The bot dropped into column ${column + 1}. Your move.`;
    }
    if (match.over) return finish();
    if (said) say($("status"), said);
    busy = false;
    await advise();
  }

  function act(column) {
    advice = null;
    match.step(rules.toAct[0] ? [column, 0] : [0, column]);
    draw();
  }

  function draw() {
    view.draw(rules, match.person, { turn: !match.over && Boolean(rules.toAct[match.person]), advice });
  }

  async function advise() {
    const now = match;
    advice = null;
    let words = "";
    if (panel.advises && now && !now.over && rules.toAct[now.person]) {
      const thought = await now.advice();
      if (now !== match || !rules.toAct[now.person] || now.over) return;
      advice = thought.model ? thought.best : null;
      words = thought.model ? counsel(thought) : NO_ADVICE;
    }
    panel.advise(words);
    draw();
  }

  function finish() {
    const result = match.outcome > 0 ? "won" : match.outcome < 0 ? "lost" : "drawn";
    say($("status"), { won: "You won.", lost: "The bot won.", drawn: "A draw." }[result]);
    panel.advise("");
    view.celebrate(rules);
    busy = false;
    $("again").hidden = false;
    $("again").focus({ preventScroll: true });
    return panel.finished(result, match);
  }

  await start();
}

function counsel({ best, chances, value }) {
  const sure = chances ? `, sure to ${Math.round(chances[best] * 100)} %` : "";
  const move = `The bot would drop into column ${best + 1}${sure}.`;
  if (value === null || value === undefined) return move;
  const game = value > 0.15 ? "the better" : value < -0.15 ? "the worse" : "an even";
  return `${move} It gives you ${game} game (${value.toFixed(2)}).`;
}
