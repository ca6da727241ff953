// The card "Your data" of a play page: whether games are recorded (not before the person says so), who the person is
// for the server, what it keeps of them, download and erase.
//
// A person without a player's token has a random name in this browser, one for each game, made when they first say yes.
// It is secret: a caller who shows it may see and erase what is kept under it. The server stores a pseudonym instead.

import { hex } from "./ids.js";
import { $, count, say, server, short } from "./page.js";
import { SparringError } from "./server.js";

const RECORD = "sparring/record"; // "yes" or "no"; nothing before the first answer
const LONG_MS = 120_000; // an erasure writes the server's whole file again

const games = (n) => `${count(n)} game${n === 1 ? "" : "s"}`;
const nameOf = (game) => `sparring/player/${game}`;

/** How to connect: whether to record, and as whom. A player's token says itself whose it is. */
export function consent(game, token) {
  const own = token?.startsWith("spat_") ?? false;
  return { record: localStorage.getItem(RECORD) === "yes", player: own ? null : localStorage.getItem(nameOf(game)), own };
}

export class YourData {
  constructor(connection, game) {
    Object.assign(this, { connection, game, erased: false, failed: false });
    this.own = consent(game, connection.server.token).own; // a player's token is used
    $("record").addEventListener("change", () => this.#answer($("record").checked));
    $("record-yes").addEventListener("click", () => this.#answer(true));
    $("record-no").addEventListener("click", () => this.#answer(false));
    $("download").addEventListener("click", () => this.#attempt(() => this.#download()));
    $("erase").addEventListener("click", () => this.#confirming(true));
    $("erase-no").addEventListener("click", () => this.#confirming(false));
    $("erase-yes").addEventListener("click", () => this.#attempt(() => this.#erase()));
    addEventListener("storage", (event) => event.key === RECORD && this.#apply()); // another tab was asked
    this.#apply();
  }

  /** Ask the server what it keeps, and show it. */
  async refresh() {
    const known = this.own || this.connection.player !== null;
    const kept = known && !this.erased ? await this.#me().then((answer) => answer.json()).catch(said) : null;
    if (kept instanceof SparringError && kept.status === 410) return this.#gone();
    if (kept instanceof SparringError || this.failed) this.#note(kept?.message ?? "");
    this.failed = kept instanceof SparringError;
    if (this.failed) return; // what was shown last stays
    const found = kept ?? { player: "", episodes: [], steps: 0 };
    say($("you-are"), found.player || "not known to the server");
    const some = found.episodes.length > 0;
    say($("your-games"), some ? `${games(found.episodes.length)}, ${count(found.steps)} moves of yours` : "none");
    $("data-actions").hidden = !some;
    if (!some) this.#confirming(false);
  }

  /** The player was erased. A token's stays so; without one the next yes makes another name. */
  #gone() {
    this.erased = this.own;
    localStorage.removeItem(nameOf(this.game));
    this.#note(this.own ? "This player was erased; nothing more of them is kept." : "");
    return this.#apply();
  }

  #answer(yes) {
    localStorage.setItem(RECORD, yes ? "yes" : "no");
    this.#note("");
    this.#apply();
  }

  #apply() {
    const answered = localStorage.getItem(RECORD), yes = answered === "yes";
    if (yes && !this.own && !localStorage.getItem(nameOf(this.game))) {
      localStorage.setItem(nameOf(this.game), hex(crypto.getRandomValues(new Uint8Array(16))));
    }
    if (!this.own) this.connection.player = localStorage.getItem(nameOf(this.game));
    this.connection.allow(yes);
    if (answered === "no") this.connection.forget();
    $("ask").hidden = answered !== null;
    $("record").checked = yes;
    const off = answered === null ? "Nothing is recorded until you allow it." : "Nothing that you play is recorded.";
    say($("record-says"), yes ? "What you play is recorded, and the bots learn from it." : off);
    return this.refresh();
  }

  async #download() {
    const file = await (await this.#me({ headers: { Accept: "application/x-ndjson" } })).blob();
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: `${this.game}.ndjson` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  async #erase() {
    this.connection.forget();
    const gone = await (await this.#me({ method: "DELETE" })).json();
    localStorage.setItem(RECORD, "no");
    await this.#gone();
    const models = gone.models.map(short).join(", ");
    const learned = models ? ` Models that may have learned from them stay until they are trained again: ${models}.` : "";
    say($("kept"), "");
    this.#note(`Erased ${games(gone.episodes)}, ${count(gone.steps)} moves of both sides.${learned}`);
  }

  #confirming(open) {
    $("erase-confirm").hidden = !open;
    $("erase").hidden = open;
    if (open) $("erase-no").focus();
  }

  async #attempt(work) {
    const problem = await work().catch(said);
    if (problem) this.#note(problem.message);
  }

  #me({ method = "GET", headers = {} } = {}) {
    const name = this.own ? {} : { "Spar-Player": this.connection.player };
    const options = { method, headers: { ...headers, ...name }, signal: AbortSignal.timeout(LONG_MS) };
    return server.ask(`/v1/games/${encodeURIComponent(this.game)}/players/me`, options);
  }

  #note(text) {
    say($("data-note"), text);
  }
}

function said(error) {
  if (!(error instanceof SparringError)) throw error;
  return error;
}
