// What was recorded and not yet answered for, kept where a reload does not reach it.
//
// localStorage rather than IndexedDB: its writes are done when they return, so that what a closing page
// spools in `pagehide` is there when the next one opens. Bounded; when full, the new chunk is refused and
// counted, and what waits already stays.

const PREFIX = "sparring/spool/";

/** Chunks by key. Several tabs may share it: both may send a chunk, the server keeps it once. */
export class Spool {
  constructor(storage, game, maxCharacters = 3_000_000) {
    this.storage = storage;
    this.prefix = `${PREFIX}${game}/`;
    this.maxCharacters = maxCharacters;
  }

  /** Keep a chunk; false where it does not fit. */
  put(chunk) {
    const { episode, seat, first_step: first } = chunk.header;
    const text = JSON.stringify(chunk);
    if (this.#characters() + text.length > this.maxCharacters) return false;
    try {
      this.storage.setItem(`${this.prefix}${episode}/${seat}/${String(first).padStart(9, "0")}`, text);
      return true;
    } catch (error) {
      if (error.name === "QuotaExceededError") return false;
      throw error;
    }
  }

  /** The oldest chunks, as [key, chunk], at most so many and so long together (but at least one). */
  peek(count = 16, characters = 1_000_000) {
    const taken = [];
    let total = 0;
    for (const key of this.keys().slice(0, count)) {
      const text = this.storage.getItem(key);
      if (text === null) continue; // another tab was answered meanwhile
      total += text.length;
      if (taken.length && total > characters) break;
      taken.push([key, JSON.parse(text)]);
    }
    return taken;
  }

  remove(key) {
    this.storage.removeItem(key);
  }

  /** Keys in the order of their episodes' opening, for a UUIDv7 begins with its time. */
  keys() {
    const found = [];
    for (let i = 0; i < this.storage.length; i++) {
      const key = this.storage.key(i);
      if (key.startsWith(this.prefix)) found.push(key);
    }
    return found.sort();
  }

  #characters() {
    return this.keys().reduce((sum, key) => sum + (this.storage.getItem(key)?.length ?? 0), 0);
  }
}

/** localStorage where there is one and it may be used; otherwise a list that lives as long as the page. */
export function openStorage() {
  try {
    const storage = globalThis.localStorage;
    storage.setItem("sparring/probe", "1");
    storage.removeItem("sparring/probe");
    return storage;
  } catch {
    return new MemoryStorage();
  }
}

/** The four verbs of Storage that are used here; `lasting` says that a reload forgets it. */
export class MemoryStorage {
  #items = new Map();
  lasting = false;
  get length() { return this.#items.size; }
  key(i) { return [...this.#items.keys()][i] ?? null; }
  getItem(key) { return this.#items.get(key) ?? null; }
  setItem(key, value) { this.#items.set(key, String(value)); }
  removeItem(key) { this.#items.delete(key); }
}
