// The JavaScript client: the same verbs as `sparring.connect` in Python.
//
//   const game = await connect(url, { game: "connect-four", player: "alice" });
//   const episode = game.episode({ seat: 0 });
//   const action = await episode.act(observation, legal);    // the champion, verified and run here
//   episode.record(observation, action, reward);             // returns at once; spooled, retried, sent once
//   episode.end(finalObservation, { terminated: true });

import { Champions } from "./champion.js";
import { leafOf, nested, Recording } from "./episode.js";
import { askedFor, newEpisode } from "./ids.js";
import { choose, chooseEntries, chooseNearly, chooseNumbers, logSoftmax, parts } from "./network.js";
import { Server, SparringError } from "./server.js";
import { openStorage, Spool } from "./spool.js";
import { Uploads } from "./uploads.js";

export { SparringError };

/**
 * A connection to one game on one server. Options: game (needed), player (the game's own name for the person),
 * token, trust ("ed25519:…"), strength (0 chance … 1 at its best; null: at its best), style (a name of styles();
 * null: any), act ("local" | "server"), storage (by default localStorage), onChange (called whenever statistics or the model change), champion (false: wait
 * for refresh() before asking for one), record (false: episodes are not recorded until allow(true)).
 */
export async function connect(url, options) {
  const server = new Server(url, options.token);
  const storage = options.storage ?? openStorage();
  const about = await describe(server, storage, options.game);
  const connection = new Connection(server, storage, about, options);
  if (connection.record) connection.uploads.start(); // what an earlier page left behind
  if (options.champion !== false) await connection.refresh();
  return connection;
}

/** The game's spec from the server, or where it does not answer, as it was the last time. */
async function describe(server, storage, game) {
  const place = `sparring/spec/${server.url}/${game}`;
  try {
    const about = await server.get(`/v1/games/${encodeURIComponent(game)}`);
    storage.setItem(place, JSON.stringify(about));
    return about;
  } catch (error) {
    const last = storage.getItem(place);
    if (!error.passing || !last) throw error;
    return JSON.parse(last);
  }
}

function checkStrength(strength) {
  if (strength === null || (typeof strength === "number" && strength >= 0 && strength <= 1)) return strength;
  const doThis = "Give a number from 0 (chance) to 1 (at its best), or null";
  throw new SparringError(`strength is ${typeof strength === "number" ? strength : JSON.stringify(strength)}`, { where: "connect", doThis });
}

export class Connection {
  constructor(server, storage, about, options) {
    Object.assign(this, { server, storage, spec: about.spec, hash: about.hash });
    this.game = options.game;
    this.version = about.spec.version ?? "1";
    this.player = options.player ?? null;
    this.record = options.record ?? true;
    this.strength = checkStrength(options.strength ?? null);
    this.style = options.style ?? null;
    this.sampleRate = about.sample_rate ?? 1;
    this.onChange = options.onChange ?? (() => {});
    this.random = options.random ?? Math.random;
    this.spool = new Spool(storage, this.game);
    this.uploads = new Uploads(server, this.spool, { game: this.game, onAnswer: (answer) => this.#answered(answer) });
    this.champions = new Champions(server, storage, {
      game: this.game, version: this.version, spec: this.hash, trust: options.trust,
      client: this.player ?? "", local: (options.act ?? "local") === "local",
    });
    this.open = new Set();
    this.skipped = 0; // steps of episodes that were not asked for
    this.lost = 0; // steps that did not fit the spool
    this.modelProblem = "";
    globalThis.addEventListener?.("pagehide", () => {
      this.#leave();
      if (this.record) this.uploads.part();
    });
  }

  /** The id of the model that acts, or null while there is no champion. */
  get model() {
    return this.champions.model?.id ?? null;
  }

  /** Look for a newer champion, between episodes; true where the model changed. Never throws: see statistics(). */
  async refresh() {
    try {
      const changed = await this.champions.refresh();
      this.modelProblem = "";
      if (changed) this.onChange();
      return changed;
    } catch (error) {
      if (!(error instanceof SparringError)) throw error;
      this.modelProblem = error.message;
      this.onChange();
      return false;
    }
  }

  /** The styles that the game sells, [{name, means}, …]: what `style` may be. */
  async styles() {
    return this.champions.styles();
  }

  /**
   * Open one seat of an episode. Give the same `episode` to every seat of one game. `leaving` returns what the
   * seat sees when the page is closed in the middle: the episode is then recorded as cut short.
   */
  episode({ seat = 0, episode = newEpisode(), seed = null, actor = "person", source = "play", leaving = null } = {}) {
    const asked = this.record && askedFor(episode, this.sampleRate);
    const opened = new Recording(this, { seat, episode, seed, actor, source, leaving, asked, rate: this.sampleRate });
    this.open.add(opened);
    return opened;
  }

  /** Record episodes from now on, or none. Of open ones: those in which no person has decided anything yet, or none. */
  allow(record) {
    this.record = record;
    if (record) this.uploads.start();
    const begun = [...this.open].filter((one) => one.first || (one.count && one.actor === "person"));
    for (const one of this.open) {
      if (!record) one.asked = false;
      else if (!begun.some((other) => other.episode === one.episode)) one.asked = askedFor(one.episode, one.rate);
    }
  }

  /** Remove what waits to be sent, and record nothing of the open episodes. */
  forget() {
    for (const one of this.open) one.asked = false;
    for (const key of this.spool.keys()) this.spool.remove(key);
  }

  /**
   * What the model would do, without doing it: {action, best, logp, value, chances, model}. A model that remembers
   * is given back the thought before as `held`; its memory is `before` and `after` the call.
   */
  async think(observation, legal = null, seat = 0, strength = this.strength, held = null, style = this.style) {
    checkStrength(strength);
    const model = this.champions.model;
    if (model && !model.network) return this.#ask(observation, legal, seat, strength, held, style);
    if (!model) return this.#chance(legal, seat);
    const step = await this.champions.step(strength, style);
    if (step === null) return this.#thought(model, observation, legal, seat, strength, held);
    if (step.share === 0) return this.#chance(legal, seat);
    if (!step.model.network) return this.#ask(observation, legal, seat, strength, null, style);
    return this.#thought(step.model, observation, legal, seat, step.share, null);
  }

  #thought(model, observation, legal, seat, strength, held) {
    const memory = held?.model === model.id ? held.after : null; // another model's memory means nothing to this one
    const { logits, mean, value, state: after = null } = model.network.run(observation, memory);
    const chances = model.card.policy === "categorical" ? this.#chances(logits, legal, seat) : null;
    const chosen = mean ? this.#numbers(mean, seat, strength) : this.#choice(logits, legal, seat, strength, model.card);
    const about = { value: value ? value[0] : null, chances, model: model.id, actor: `model:${model.id}` };
    return { ...chosen, ...about, before: memory ?? after?.map(() => 0) ?? null, after };
  }

  async #ask(observation, legal, seat, strength, held, style) {
    const leaves = this.spec.seats[seat].observation;
    const said = Object.fromEntries(leaves.map((leaf) => [leaf.name, nested(leafOf(observation, leaf), leaf)]));
    const body = { observation: said, legal: legal && Array.from(legal, Boolean), seat, strength };
    if (style) body.style = style;
    if (held?.after) Object.assign(body, { state: Array.from(held.after), model: held.model });
    const answer = await this.#answer(body);
    const actor = answer.model ? `model:${answer.model}` : "script:random";
    const after = answer.state ?? null;
    const before = held?.after ?? after?.map(() => 0) ?? null;
    return { ...answer, best: answer.action, chances: null, actor, before, after };
  }

  /** The server's choice; a style that it does not sell is said, and left out. */
  async #answer(body) {
    const path = `/v1/games/${this.game}/act`;
    try {
      return await this.server.post(path, body);
    } catch (error) {
      if (error.field !== "style") throw error;
      this.champions.notice = error.wrong;
      return this.server.post(path, { ...body, style: null });
    }
  }

  #chance(legal, seat) {
    const leaf = this.spec.seats[seat].action;
    const about = { value: null, chances: null, model: null, actor: "script:random" };
    if (!leaf.choices) {
      const size = (leaf.shape ?? []).reduce((a, b) => a * b, 1);
      return { ...this.#numbers(new Float32Array(size), seat, 0), ...about };
    }
    const even = new Float32Array(leaf.choices.reduce((a, b) => a + b, 0));
    return { ...this.#choice(even, legal, seat, 0), ...about };
  }

  /** Of choices: one, or one for each entry in the spec's shape. */
  #choice(logits, legal, seat, strength, card = null) {
    const leaf = this.spec.seats[seat].action;
    const samples = card?.acts === "sample";
    const rivals = new Set(this.spec.seats.map((one) => one.team ?? 0)).size > 1;
    if (card && rivals && !samples && (strength ?? 1) >= 1 && leaf.kind === "discrete") {
      return chooseNearly(Array.from(logits), legal, card.policy === "greedy", this.random);
    }
    if (leaf.kind !== "multi-discrete") return choose(logits, legal, strength, this.random, samples);
    const { action, best, logp } = chooseEntries(logits, legal, leaf.choices, strength, this.random, samples);
    return { action: nested(action, leaf), best: nested(best, leaf), logp };
  }

  #chances(logits, legal, seat) {
    const { choices } = this.spec.seats[seat].action;
    const masks = legal && parts(legal, choices);
    return parts(logits, choices).flatMap((part, i) => logSoftmax(part, masks && masks[i]).map(Math.exp));
  }

  /** Of a box: numbers as the game's spec shapes them. */
  #numbers(mean, seat, strength) {
    const leaf = this.spec.seats[seat].action;
    const { action, best, logp } = chooseNumbers(mean, leaf, strength, this.random);
    const [done, top] = [nested(action, leaf), nested(best, leaf)];
    return { action: done, best: action === best ? done : top, logp };
  }

  /** Spool a chunk that is complete; called by episodes. */
  keep(chunk) {
    if (!this.spool.put(chunk)) this.lost += chunk.header.steps;
    this.uploads.start();
  }

  /** How many steps of an episode the server said it keeps. */
  kept(episode) {
    return this.uploads.kept.get(episode) ?? 0;
  }

  /** Send all that waits; true once the server has answered for everything. */
  async flush(timeoutS = 10) {
    return this.uploads.flush(timeoutS);
  }

  /** What was sent, what waits, and what went wrong, in words. */
  statistics() {
    return {
      ...this.uploads.counts, waiting: this.spool.keys().length, skipped: this.skipped, lost: this.lost,
      sampleRate: this.sampleRate, model: this.model, counter: this.champions.manifest?.counter ?? null,
      local: this.champions.local, lasting: this.storage.lasting !== false,
      problem: this.uploads.problem, modelProblem: this.modelProblem, notice: this.champions.notice,
    };
  }

  close() {
    this.#leave();
    this.uploads.close();
  }

  #leave() {
    for (const episode of this.open) episode.leave();
  }

  #answered(answer) {
    if (typeof answer.sample_rate === "number") this.sampleRate = answer.sample_rate;
    this.onChange();
  }
}
