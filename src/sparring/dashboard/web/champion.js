// The champion: fetched, verified, and only then run. Nothing is replaced in silence: whatever does not
// verify leaves the model that was held before, and is said.

import { hex, modelFor, sha256 } from "./ids.js";
import { Network, readSafetensors } from "./network.js";
import { SparringError } from "./server.js";

/** A model that may act here. `network` is null where the server must choose. */
export class Model {
  constructor(id, card, network) {
    Object.assign(this, { id, card, network });
  }
}

/** Keeps the newest verified champion of one game. `notice` is a sentence about what a person should know. */
export class Champions {
  constructor(server, storage, { game, version, spec, trust = null, client = "", local = true }) {
    Object.assign(this, { server, storage, game, version, spec, trust, client, local });
    Object.assign(this, { model: null, manifest: null, notice: "", strengths: null, looked: false, known: new Map() });
    this.failed = new Set(); // models of steps that were not to be had, until the next refresh
    this.place = `${server.url || globalThis.location?.origin || ""}/${game}/${version}`;
  }

  /** Ask for the champion; true where the model changed. Throws SparringError, and keeps what it holds. */
  async refresh() {
    let signed;
    try {
      signed = await this.server.get(`/v1/games/${this.game}/champion?version=${encodeURIComponent(this.version)}`);
    } catch (error) {
      if (error.status !== 404) throw error;
      this.notice = this.model ? this.notice : "no champion yet";
      return false;
    }
    const manifest = await this.#verified(signed);
    this.looked = false; // the next weaker move asks for the ladder again
    if (this.failed.size) this.notice = "";
    this.failed.clear();
    const id = modelFor(manifest, this.client);
    if (manifest.spec !== this.spec) throw bad("the champion was trained for another version of this game");
    this.#remember(manifest, signed.key);
    this.manifest = manifest;
    if (this.model?.id === id) return false;
    this.model = await this.#fetch(id);
    return true;
  }

  /**
   * What plays at a strength in a style: {model, share} of the ladder that the game sells, with the model loaded; null
   * where there is no ladder, or the champion itself plays. A style that is not sold is said, and left out; so is a step
   * whose model is not to be had.
   */
  async step(strength, style = null) {
    const share = strength ?? 1;
    if (share >= 1 && !style) return null;
    const found = style && (await this.styles()).find((one) => one.name === style);
    if (style && !found) this.notice = noStyle(style, this.strengths?.styles ?? []);
    if (!this.looked) await this.#refreshStrengths();
    if (!this.strengths || (share >= 1 && !found)) return null;
    const { steps } = found || this.strengths;
    const step = steps[Math.round(share * (steps.length - 1))];
    const model = await this.#known(step.model);
    return model && { share: step.share, model };
  }

  /** The styles that the game sells: [{name, means}, …]; none before there is a champion, whose key is the trusted one. */
  async styles() {
    if (!this.manifest) return [];
    if (!this.looked) await this.#refreshStrengths();
    return this.strengths?.styles ?? [];
  }

  async #known(id) {
    if (this.model?.id === id) return this.model;
    if (this.known.has(id) || this.failed.has(id)) return this.known.get(id) ?? null;
    try {
      this.known.set(id, await this.#fetch(id));
      return this.known.get(id);
    } catch (error) {
      if (!(error instanceof SparringError)) throw error;
      this.failed.add(id);
      this.notice = `the strength's own model ${id.slice(0, 12)} is not to be had, so the champion plays: ${error.wrong}`;
      return null;
    }
  }

  /** The ladder of strengths, signed by the same key. Without one a strength is a share of random moves. */
  async #refreshStrengths() {
    this.looked = true;
    try {
      const path = `/v1/games/${this.game}/strengths?version=${encodeURIComponent(this.version)}`;
      const ladder = await this.#payload(await this.server.get(path));
      const fits = ladder.game === this.game && ladder.version === this.version && ladder.spec === this.spec;
      if (!fits || !ladder.steps?.length) throw bad("the strengths are another game's");
      if (ladder.issued_at_ms < (this.strengths?.issued_at_ms ?? 0)) throw bad("the strengths are older than before");
      this.strengths = ladder;
    } catch (error) {
      if (!(error instanceof SparringError)) throw error;
      if (error.status === 404) this.strengths = null;
      else if (!error.passing) this.notice = error.message;
    }
  }

  /** What was signed, once the trusted key's signature holds. */
  async #payload(signed) {
    const [trust] = (this.trust ?? this.#pinned(signed.key)).split("@");
    if (signed.key !== trust) throw bad(`the champion is signed by ${signed.key}, not by the trusted ${trust}`);
    const payload = fromBase64(signed.payload);
    const key = fromBase64(trust.replace("ed25519:", ""));
    const holds = await checkSignature(key, fromBase64(signed.signature), payload);
    if (holds === false) throw bad("the champion's signature does not fit");
    if (holds === null && this.local) {
      this.local = false; // a model that cannot be verified is not run here; the server runs it itself
      this.notice = "this browser cannot check signatures, so the server chooses the moves";
    }
    return JSON.parse(new TextDecoder().decode(payload));
  }

  async #verified(signed) {
    const manifest = await this.#payload(signed);
    const [, least = "0"] = (this.trust ?? "").split("@");
    if (manifest.game !== this.game || manifest.version !== this.version) throw bad("the champion is another game's");
    if (manifest.counter < this.#lastCounter(signed.key))
      throw bad(`the champion's counter went back to ${manifest.counter}`);
    if (manifest.counter < Number(least))
      throw bad(`the champion's counter ${manifest.counter} is below ${least}, the least that is trusted`);
    if (manifest.expires_at_ms < Date.now()) throw bad("the champion's manifest has expired");
    return manifest;
  }

  async #fetch(id) {
    const raw = await this.server.bytes(`/v1/models/${id}/card.json`);
    if (hex(sha256(raw)) !== id) throw bad(`the card of model ${id.slice(0, 12)} is not what its name says`);
    const card = JSON.parse(new TextDecoder().decode(raw));
    if (card.spec !== this.spec) throw bad(`model ${id.slice(0, 12)} fits another version of this game`);
    // A torch module of its maker's own has no layers that could run here: the server runs its graph.
    if (!this.local || card.network.module) return new Model(id, card, null);
    const weights = await this.server.bytes(`/v1/models/${id}/weights.safetensors`);
    if (hex(sha256(weights)) !== card.files["weights.safetensors"])
      throw bad(`the weights of model ${id.slice(0, 12)} are not what its card says`);
    return new Model(id, card, new Network(card.network, readSafetensors(weights)));
  }

  #pinned(key) {
    const name = `sparring/trust/${this.place}`;
    const pinned = this.storage.getItem(name);
    if (pinned) return pinned;
    this.storage.setItem(name, key);
    this.notice = "no key was given, so the first one seen is trusted from now on";
    return key;
  }

  #lastCounter(key) {
    return Number(this.storage.getItem(`sparring/counter/${this.place}/${key}`) ?? 0);
  }

  #remember(manifest, key) {
    this.storage.setItem(`sparring/counter/${this.place}/${key}`, String(manifest.counter));
  }
}

/** Whether the Ed25519 signature holds; null where this browser cannot say. */
async function checkSignature(key, signature, payload) {
  const subtle = globalThis.crypto?.subtle; // hidden from pages that are neither on this machine nor over TLS
  if (!subtle) return null;
  try {
    const imported = await subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
    return await subtle.verify({ name: "Ed25519" }, imported, signature, payload);
  } catch (error) {
    if (error.name === "NotSupportedError") return null;
    throw bad(`the champion's key does not read: ${error.message}`);
  }
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function noStyle(style, styles) {
  const names = styles.map((one) => one.name).join(", ");
  return `there is no style "${style}"; ${names ? `the styles are ${names}` : "no styles are sold"}`;
}

function bad(wrong) {
  return new SparringError(wrong, { where: "champion", doThis: "The model held before stays in use" });
}
