// One seat's steps, cut into chunks. The last step stays open: what it earns may come while others move.

import { SparringError } from "./server.js";

const STEPS_PER_CHUNK = 256;
const BYTES_PER_CHUNK = 512 << 10; // before compression; the limit is 768 KiB after it
const ITEM_BYTES = { uint8: 1, int8: 1, int16: 2, int32: 4, float32: 4 };

/** What `Connection.episode` gives. Every verb but `act` returns at once. */
export class Recording {
  constructor(connection, options) {
    Object.assign(this, options);
    this.connection = connection;
    this.place = connection.spec.seats[this.seat];
    this.steps = []; // open, not yet spooled
    this.first = 0; // counts this seat's decisions
    this.ended = false;
    this.chosen = null;
    this.held = null; // the last thought that left a memory
    const values = (leaf) => (leaf.shape ?? []).reduce((a, b) => a * b, ITEM_BYTES[leaf.dtype ?? "float32"] ?? 8);
    const bytes = this.place.observation.reduce((sum, leaf) => sum + values(leaf), 32);
    this.most = Math.max(1, Math.min(STEPS_PER_CHUNK, Math.floor(BYTES_PER_CHUNK / bytes)));
  }

  /** How many decisions were recorded. */
  get count() {
    return this.first + this.steps.length;
  }

  /**
   * The model's action (or a random one, while there is no champion). Recording it says so by itself. A recurrent model
   * remembers each call: ask it once for each decision.
   */
  async act(observation, legal = null) {
    const { connection } = this;
    this.chosen = { ...(await connection.think(observation, legal, this.seat, connection.strength, this.held)), legal };
    if (this.chosen.after) this.held = this.chosen;
    return this.chosen.action;
  }

  /** Keep one decision. An action equal to what act() just chose carries its actor, legal and logp. */
  record(observation, action, reward = 0, { tick = this.count, legal = null, logp = null } = {}) {
    if (this.ended) throw new SparringError("the episode has ended", { where: "record", doThis: "Open another" });
    const own = this.chosen !== null && this.chosen.action === action ? this.chosen : null;
    this.chosen = null;
    const actor = own?.actor ?? this.actor;
    if (this.steps.length >= this.most || (this.steps.length && this.steps[0].actor !== actor)) this.#seal("running");
    this.steps.push({
      observation: this.#said(observation), action, reward, tick, actor,
      legal: legal ?? own?.legal ?? null, logp: logp ?? own?.logp ?? null, state: own?.before ?? null,
    });
  }

  /** Add to what the last recorded step earned: what came while others moved. */
  earn(reward) {
    const last = this.steps.at(-1);
    if (last) last.reward += reward;
  }

  /** The seat's episode is over; `terminated: false` means cut short. */
  end(finalObservation, { terminated = true, outcome = null } = {}) {
    if (this.ended) return;
    this.#finish();
    this.#seal(terminated ? "terminated" : "truncated", this.#said(finalObservation), outcome);
  }

  /** The page closes: cut short here. Without `leaving` the last decision's view serves as the final one. */
  leave() {
    if (this.ended) return;
    this.#finish();
    const seen = this.leaving ? this.#said(this.leaving()) : this.steps.pop()?.observation;
    this.#seal("truncated", seen);
  }

  #finish() {
    this.ended = true;
    this.connection.open.delete(this);
  }

  #said(observation) {
    return this.place.observation.map((leaf) => nested(leafOf(observation, leaf), leaf));
  }

  #seal(ending, final = null, outcome = null) {
    const steps = this.steps;
    if (!steps.length) return;
    this.steps = [];
    const first = this.first;
    this.first += steps.length;
    if (!this.asked) {
      this.connection.skipped += steps.length;
      return;
    }
    const { game, version, hash, player } = this.connection;
    const header = {
      game, version, spec: hash, episode: this.episode, seat: this.seat, first_step: first, steps: steps.length,
      actor: steps[0].actor, source: this.source, sample_rate: this.rate, ending,
      ...(player !== null && this.actor === "person" && { player }),
      ...(this.seed !== null && { seed: Number(this.seed) }),
      ...(outcome !== null && { outcome }),
    };
    this.connection.keep({ header, columns: this.#columns(steps, final) });
  }

  #columns(steps, final) {
    const columns = {};
    this.place.observation.forEach((leaf, i) => {
      columns[leaf.name] = steps.map((step) => step.observation[i]);
      if (final) columns[`final_${leaf.name}`] = final[i];
    });
    if (steps[0].state) columns["state/state"] = Array.from(steps[0].state, (x) => Number(x.toPrecision(9)));
    columns.action = steps.map((step) => step.action);
    columns.reward = steps.map((step) => Number(Math.fround(step.reward).toPrecision(9)));
    columns.tick = steps.map((step) => Number(step.tick));
    if (steps.every((step) => step.legal !== null)) columns.legal = steps.map((step) => Array.from(step.legal, Number));
    if (steps.every((step) => step.logp !== null))
      columns.behaviour_logp = steps.map((step) => Number(Math.fround(step.logp).toPrecision(9)));
    return columns;
  }
}

/** A flat array as nested lists of the leaf's shape, in numbers that JSON carries exactly. */
export function nested(flat, leaf) {
  const float = (leaf.dtype ?? "float32") === "float32";
  // Nine digits name a float32 exactly; the double behind it would print seventeen.
  const exact = (x) => (float ? Number(Number(x).toPrecision(9)) : Number(x));
  const numbers = Array.from(typeof flat === "number" ? [flat] : flat, exact);
  const cut = (values, [size, ...rest]) => {
    if (size === undefined) return values[0];
    if (!rest.length) return values;
    const each = values.length / size;
    return Array.from({ length: size }, (_, i) => cut(values.slice(i * each, (i + 1) * each), rest));
  };
  return cut(numbers, leaf.shape ?? []);
}

/** The observation's array for a leaf, named with or without "observation/"; a lone array is the only leaf. */
export function leafOf(observation, leaf) {
  if (ArrayBuffer.isView(observation) || Array.isArray(observation)) return observation;
  const found = observation[leaf.name] ?? observation[leaf.name.replace(/^observation\//, "")];
  if (found === undefined) throw new SparringError(`the observation has no ${leaf.name}`, { where: "record" });
  return found;
}
