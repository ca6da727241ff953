// Sends what the spool holds, oldest first, until each chunk was answered for.
//
// The server keeps one chunk under each key, so that sending again after a lost answer is harmless.

import { SparringError } from "./server.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 30_000;
const KEPT = new Set(["new", "had", "taken"]);
const REMEMBERED_EPISODES = 64;
const MAX_PARTING_CHARACTERS = 60_000; // browsers allow 64 KiB to requests that outlive their page

/** One upload at a time; waits twice as long after each failure, with full jitter. */
export class Uploads {
  constructor(server, spool, { game, onAnswer = () => {}, random = Math.random }) {
    Object.assign(this, { server, spool, game, onAnswer, random });
    this.counts = { steps: 0, chunks: 0, refused: 0, retries: 0 };
    this.kept = new Map(); // episode → steps that the server said it keeps
    this.problem = "";
    this.failures = 0;
    this.batch = 16;
    this.running = null;
    this.timer = null;
    this.closed = false;
  }

  /** Begin sending unless it is going on or waiting its turn. */
  start() {
    if (this.closed || this.running || this.timer) return;
    this.running = this.#drain().finally(() => { this.running = null; });
  }

  /** Send now, whatever the waiting time; true once nothing is left, false where time ran out. */
  async flush(timeoutS = 10) {
    const until = Date.now() + timeoutS * 1000;
    while (this.spool.keys().length && !this.closed && Date.now() < until) {
      clearTimeout(this.timer);
      this.timer = null;
      this.start();
      await within(this.running, until - Date.now());
      if (this.failures) await within(new Promise(() => {}), Math.min(250, until - Date.now()));
    }
    return this.spool.keys().length === 0;
  }

  /**
   * The page is going: send what fits into a request that outlives it, and hear no answer. What was not
   * answered for stays in the spool, and the next page sends it again; the server keeps it once.
   */
  part() {
    const chunks = this.spool.peek(16, MAX_PARTING_CHARACTERS).map(([, chunk]) => chunk);
    if (!chunks.length || JSON.stringify(chunks).length > MAX_PARTING_CHARACTERS) return;
    this.server.post(`/v1/games/${this.game}/chunks`, { chunks }, { keepalive: true }).catch(() => {});
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  async #drain() {
    for (let taken = this.spool.peek(this.batch); taken.length && !this.closed; taken = this.spool.peek(this.batch)) {
      try {
        const chunks = taken.map(([, chunk]) => chunk);
        this.#settle(taken, await this.server.post(`/v1/games/${this.game}/chunks`, { chunks }));
        this.failures = 0;
        this.problem = "";
      } catch (error) {
        if (!(error instanceof SparringError)) throw error;
        if (!this.#recover(taken, error)) return;
      }
    }
  }

  /** Take an error as far as it goes; false where it is better to wait. */
  #recover(taken, error) {
    this.problem = error.message;
    if (error.results?.length === taken.length) {
      this.#settle(taken, { results: error.results });
      return true;
    }
    const lasting = !error.passing && error.status !== 401 && error.status !== 403;
    if (lasting && taken.length > 1) {
      this.batch = Math.ceil(taken.length / 2); // too large, or one of them is unreadable: find it by halves
      return true;
    }
    if (lasting) {
      this.#settle(taken, { results: [{ verdict: "refused", reason: error.message }] });
      return true;
    }
    this.failures += 1;
    this.counts.retries += 1;
    const ceiling = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** (this.failures - 1));
    this.timer = setTimeout(() => { this.timer = null; this.start(); }, this.random() * ceiling);
    this.onAnswer({});
    return false;
  }

  #settle(taken, answer) {
    taken.forEach(([key, chunk], i) => {
      const { verdict, reason = "" } = answer.results[i];
      this.spool.remove(key);
      if (!KEPT.has(verdict)) {
        this.counts.refused += 1;
        this.problem = reason || `the server refused a chunk: ${verdict}`;
        return;
      }
      const { episode, steps } = chunk.header;
      this.counts.steps += steps;
      this.counts.chunks += 1;
      this.kept.set(episode, (this.kept.get(episode) ?? 0) + steps);
      if (this.kept.size > REMEMBERED_EPISODES) this.kept.delete(this.kept.keys().next().value);
    });
    this.batch = 16;
    this.onAnswer(answer);
  }
}

/** Wait for `work`, but no longer than so many milliseconds. */
async function within(work, ms) {
  let timer;
  const late = new Promise((wake) => { timer = setTimeout(wake, Math.max(0, ms)); });
  await Promise.race([work, late]);
  clearTimeout(timer);
}
