// A game by the clock: the person's hands, the bot's network, a fixed number of decisions a second.

import { Match, nextFrame } from "../match.js";
import { $, say } from "../page.js";
import { NO_ADVICE, nextSeat } from "../panel.js";
import { SparringError } from "../server.js";

const LONGEST_SLEEP_MS = 250; // a page that was hidden goes on from where it was

export async function playInRealTime(setting) {
  return setting.game === "duel" ? new DuelTable(setting).open() : new CartTable(setting).open();
}

/** What both games share: begin, a loop of ticks and pictures, and the end. */
class Table {
  constructor({ game, board, Game, connection, panel }) {
    Object.assign(this, { game, Game, connection, panel });
    this.rules = new Game();
    this.match = null;
    this.running = false;
    this.advice = null;
    this.view = new board.Board($("board"), () => this.begin());
    panel.between = () => !this.running;
    $("again").addEventListener("click", () => this.begin());
  }

  async open() {
    await this.ready();
    for (;;) {
      await nextFrame();
      if (!this.running) this.draw(this.now, this.now, 1);
    }
  }

  async begin() {
    if (this.running) return;
    this.running = true;
    if (this.match.over) await this.ready();
    $("again").hidden = true;
    say($("status"), this.goes);
    $("board").querySelector("canvas").focus({ preventScroll: true });
    const stuck = await this.run().catch((error) => error);
    this.running = false;
    $("again").hidden = false;
    say($("again"), "Play again");
    if (!stuck) return this.finish();
    if (!(stuck instanceof SparringError)) throw stuck;
    this.match.abandon();
    await this.ready();
    say($("status"), `The bot cannot move: ${stuck.message}`); // the server chooses, and does not answer
  }

  async run() {
    let before = this.now;
    let at = performance.now();
    while (!this.match.over) {
      const now = await nextFrame();
      const tickMs = 1000 / this.pace();
      at = Math.max(at, now - LONGEST_SLEEP_MS);
      for (; now - at >= tickMs && !this.match.over; at += tickMs) {
        before = this.now;
        await this.tick();
        this.now = this.view.look(this.rules);
      }
      this.draw(before, this.now, Math.min(1, (now - at) / tickMs));
    }
  }

  async advise(words) {
    if (!this.panel.advises) {
      this.advice = null;
      this.panel.advise("");
      return;
    }
    const thought = await this.match.advice();
    this.advice = thought.model ? thought.best : null;
    this.panel.advise(thought.model ? words[thought.best] : NO_ADVICE);
  }
}

class DuelTable extends Table {
  goes = "Play!";

  pace() {
    return 30;
  }

  async ready() {
    await this.panel.refresh();
    this.match = new Match(this.connection, this.rules, nextSeat(this.game), 2);
    this.now = this.view.look(this.rules);
    say($("status"), `You play on the ${this.match.person === 0 ? "left" : "right"}.`);
    say($("again"), "Start");
    $("again").hidden = false;
  }

  async tick() {
    const { match, rules } = this;
    const own = this.view.action(rules, match.person);
    const theirs = await match.botAction();
    await this.advise(["The bot would go up.", "The bot would stay.", "The bot would go down."]);
    match.step(match.person === 0 ? [own, theirs] : [theirs, own]);
  }

  draw(before, now, part) {
    const banner = this.running ? "" : this.match.over ? this.verdict() : "press space or tap to begin";
    this.view.draw(before, now, part, { person: this.match.person, advice: this.advice, banner });
  }

  verdict() {
    const [own, theirs] = [this.now.scores[this.match.person], this.now.scores[this.match.bot]];
    return `${own > theirs ? "you won" : own < theirs ? "the bot won" : "a draw"} ${own} : ${theirs}`;
  }

  finish() {
    const result = this.match.outcome > 0 ? "won" : this.match.outcome < 0 ? "lost" : "drawn";
    say($("status"), { won: "You won.", lost: "The bot won.", drawn: "A draw." }[result]);
    return this.panel.finished(result, this.match);
  }
}

class CartTable extends Table {
  constructor(setting) {
    super(setting);
    this.goes = "Keep it up!";
    this.other = new this.Game(); // the champion's cart: shown, not recorded
    this.best = 0;
    this.pace = this.panel.usePace(15);
    for (const [id, word] of [["won", "your best"], ["drawn", "this time"], ["lost", "the bot"]]) {
      say($(`${id}-word`), word);
      say($(id), "–");
    }
  }

  async ready() {
    await this.panel.refresh();
    this.match = new Match(this.connection, this.rules, 0, 1);
    this.other.reset(BigInt(this.match.episodes[0].seed));
    this.held = null; // what the bot remembers of its own cart
    this.now = this.view.look(this.rules);
    say($("status"), "Ready when you are.");
  }

  async tick() {
    const own = this.view.action();
    await this.advise(["The bot would push left.", "The bot would push right."]);
    if (this.other.ending[0] === 0) {
      await this.stepOther();
    }
    this.match.step([own]);
  }

  draw(before, now, part) {
    const { advice, other, rules } = this;
    const invites = this.match.over ? `${rules.tick} ticks; push to try again` : "push left or right to begin";
    const banner = this.running ? "" : invites;
    const bot = this.view.look(other);
    this.view.draw(before, now, part, { bot, botTicks: other.tick, ticks: rules.tick, advice, banner });
  }

  async stepOther() {
    this.held = await this.connection.think(this.other.observation(0), null, 0, this.connection.strength, this.held);
    this.other.step([this.held.action]);
  }

  async finish() {
    const ticks = Number(this.rules.tick);
    this.best = Math.max(this.best, ticks);
    while (this.other.ending[0] === 0) { // how far it would have come, without the wait
      await this.stepOther();
    }
    say($("won"), String(this.best));
    say($("drawn"), String(ticks));
    say($("lost"), String(this.other.tick));
    const held = `You held it for ${ticks} ticks; the bot for ${this.other.tick}.`;
    say($("status"), ticks >= 500 ? "All five hundred ticks. Perfect." : held);
    return this.panel.finished(null, this.match);
  }
}
