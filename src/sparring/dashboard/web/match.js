// One game between a person and the bot, both seats recorded: the person's as "person", the bot's as its model.

import { newEpisode, newSeed } from "./ids.js";

export class Match {
  /** `person` is the person's seat; every other seat is the bot's. */
  constructor(connection, game, person, seats) {
    Object.assign(this, { connection, game, person });
    this.id = newEpisode();
    const seed = newSeed();
    game.reset(BigInt(seed));
    this.episodes = Array.from({ length: seats }, (_, seat) => connection.episode({
      seat, episode: this.id, seed, actor: seat === person ? "person" : "script:random",
      leaving: () => game.observation(seat),
    }));
  }

  get over() {
    return this.game.ending.every((ending) => ending !== 0);
  }

  /** Whether no seat has decided anything yet. */
  get untouched() {
    return this.episodes.every((episode) => episode.count === 0);
  }

  get asked() {
    return this.episodes[0].asked;
  }

  /** The person's score once it is over: 1 won, 0 drawn, -1 lost (or the game's own count). */
  get outcome() {
    return this.game.outcome[this.person];
  }

  get bot() {
    return this.episodes.length === 1 ? null : 1 - this.person;
  }

  /** What the bot does at its seat. */
  async botAction() {
    return this.episodes[this.bot].act(this.game.observation(this.bot), this.game.legal(this.bot));
  }

  /** What the bot would do in the person's place, at its best. */
  async advice() {
    const { game, person, advised } = this;
    // Asked again at one tick, a model with a memory must not remember that tick twice.
    const held = advised?.tick === game.tick ? advised.held : advised?.thought ?? null;
    const thought = await this.connection.think(game.observation(person), game.legal(person), person, null, held, null);
    this.advised = { tick: game.tick, held, thought };
    return thought;
  }

  /** Record every seat that decides, and go on by one decision. */
  step(actions) {
    const { game } = this;
    this.episodes.forEach((episode, seat) => {
      if (!game.toAct[seat]) return;
      const about = { tick: Number(game.tick), legal: game.legal(seat) };
      episode.record(game.observation(seat), actions[seat], 0, about);
    });
    game.step(actions);
    this.episodes.forEach((episode, seat) => {
      episode.earn(game.reward[seat]);
      if (game.ending[seat] === 0) return;
      episode.end(game.observation(seat), { terminated: game.ending[seat] === 1, outcome: game.outcome[seat] });
    });
  }

  /** Leave it here: recorded as cut short. */
  abandon() {
    for (const episode of this.episodes) episode.leave();
  }
}

/** The next picture; in a hidden page there is none, and a game that runs by the clock rests. */
export const nextFrame = () => new Promise((draw) => requestAnimationFrame(draw));
