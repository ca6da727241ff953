// Runs a model's network in plain JavaScript: the spec of wire/network.py on weights from a safetensors file.
//
// Numbers are float32 where they are kept and double where they are summed, so results agree with NumPy to
// about 1e-6. One observation at a time: a browser plays one game.

import { concatenate, conv, dense, encode, pool, remember, residual } from "./layers.js";

const DTYPES = { F32: Float32Array, F64: Float64Array, I32: Int32Array, U8: Uint8Array };
const MAX_HEADER_BYTES = 1 << 20;

/** The tensors in a safetensors file: name → {shape, data}. Throws where the bytes are not what they claim. */
export function readSafetensors(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 8) throw new Error(`a safetensors file has at least 8 bytes, this one ${bytes.length}`);
  const size = view.getUint32(0, true) + view.getUint32(4, true) * 2 ** 32;
  if (size > MAX_HEADER_BYTES || size > bytes.length - 8) throw new Error(`the header claims ${size} bytes`);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const Kind = DTYPES[dtype];
    const count = shape.reduce((a, b) => a * b, 1);
    if (!Kind || end - start !== count * Kind.BYTES_PER_ELEMENT || end > bytes.length - 8 - size)
      throw new Error(`tensor ${name} does not fit: ${dtype} [${shape}]`);
    const from = bytes.byteOffset + 8 + size + start;
    tensors[name] = { shape, data: new Kind(bytes.buffer.slice(from, from + end - start)) };
  }
  return tensors;
}

/**
 * A network ready to run: `run({leaf: array}) → {head: Float32Array}`. One with a memory also gives `state`, which
 * the episode's next step is run with; without a state an episode begins.
 */
export class Network {
  constructor(spec, tensors) {
    this.spec = spec;
    this.tensors = tensors;
  }

  run(observation, state = null) {
    const { inputs, heads, memory = null, entities = [] } = this.spec;
    const parts = [];
    const images = inputs.filter((input) => input.image);
    if (images.length) parts.push(this.#image(images, observation));
    entities.forEach((encoder, i) => parts.push(this.#entities(`entities/${i}`, encoder, observation)));
    const sets = new Set(entities.map((encoder) => encoder.leaf));
    inputs.forEach((input, i) => {
      if (input.image || sets.has(input.name)) return;
      const x = prepare(input, leafOf(observation, input.name));
      parts.push(input.normalise ? this.#normalised(`inputs/${i}`, x) : x);
    });
    const features = concatenate(parts);
    const trunks = this.spec.separate_value ? ["trunk", "value_trunk"] : ["trunk"];
    const seen = {};
    const after = [];
    trunks.forEach((place, i) => {
      seen[place] = this.#stack(place, this.spec.trunk ?? [], { x: features }).x;
      if (!memory) return;
      const size = memory.type === "gru" ? memory.units : 2 * memory.units;
      if (state && state.length !== size * trunks.length) throw new Error(`the state has ${state.length} numbers`);
      const held = state ? state.slice(i * size, (i + 1) * size) : new Float32Array(size);
      const next = remember(memory, this.#pair(place.replace("trunk", "memory")), seen[place], held);
      seen[place] = next.output;
      after.push(next.state);
    });
    const outputs = {};
    for (const head of heads) {
      const own = head.name === "value" && this.spec.separate_value;
      outputs[head.name] = this.#head(head, seen[own ? "value_trunk" : "trunk"]);
    }
    if (memory) outputs.state = concatenate(after);
    return outputs;
  }

  /** Each entry as deviations from its mean, ±10 at most. */
  #normalised(place, x) {
    const [mean, deviation] = [this.#tensor(`${place}/mean`).data, this.#tensor(`${place}/deviation`).data];
    return x.map((value, i) => Math.min(10, Math.max(-10, (value - mean[i]) / deviation[i])));
  }

  /** All images joined along their channels, through the image layers, flat again. */
  #image(inputs, observation) {
    const x = concatenate(inputs.map((input) => prepare(input, leafOf(observation, input.name))));
    const [height, width] = inputs[0].shape.slice(-2);
    return this.#stack("image", this.spec.image ?? [], { x, channels: x.length / (height * width), height, width }).x;
  }

  /** One encoder's sets, each frame for itself. */
  #entities(place, encoder, observation) {
    const input = this.spec.inputs.find(({ name }) => name === encoder.leaf);
    const counts = leafOf(observation, encoder.count);
    const most = input.shape.at(-2);
    const all = prepare(input, leafOf(observation, encoder.leaf));
    const size = all.length / counts.length;
    return concatenate(Array.from(counts, (count, i) =>
      encode(encoder, this.#pair(place), all.slice(i * size, (i + 1) * size), most, Number(count))));
  }

  /** Layers one behind the other; an image has channels, height and width beside its numbers. */
  #stack(place, layers, image) {
    return layers.reduce((now, layer, i) => {
      const pair = this.#pair(`${place}/${i}`);
      if (layer.type === "conv") return conv(layer, pair(), now);
      if (layer.type === "pool") return pool(layer, now);
      if (layer.type === "residual") return residual(layer, pair, now);
      return { x: dense(pair(), now.x, layer.activation ?? "tanh") };
    }, image);
  }

  #head(head, x) {
    const pair = this.#pair(head.name);
    const advantage = dense(pair(), x, "none");
    if (head.bounds) return advantage.map((raw) => within(raw, head.bounds));
    if (!head.dueling) return advantage;
    const mean = advantage.reduce((a, b) => a + b, 0) / advantage.length;
    const [value] = dense(pair("value"), x, "none");
    return advantage.map((a) => value + a - mean);
  }

  /** `pair("first")` is the weight and bias of that part of `place`, `pair()` of the place itself. */
  #pair(place) {
    return (part = "") => {
      const at = part ? `${place}/${part}` : place;
      return { place: at, weight: this.#tensor(`${at}/weight`), bias: this.#tensor(`${at}/bias`).data };
    };
  }

  #tensor(name) {
    const found = this.tensors[name];
    if (!found) throw new Error(`the weights have no ${name}`);
    return found;
  }
}

function prepare(input, raw) {
  const { shift = 0, scale = 1, one_hot: choices = 0 } = input;
  if (choices > 0) {
    const flat = new Float32Array(raw.length * choices);
    for (let i = 0; i < raw.length; i++) {
      const choice = Number(raw[i]);
      if (choice >= 0 && choice < choices) flat[i * choices + choice] = 1; // beyond them: all zeros, as in NumPy
    }
    return flat;
  }
  const scaled = new Float32Array(raw.length);
  for (let i = 0; i < raw.length; i++) scaled[i] = (Number(raw[i]) - shift) * scale;
  return scaled;
}

function leafOf(observation, name) {
  const found = observation[name] ?? observation[name.replace(/^observation\//, "")];
  if (found === undefined) throw new Error(`the observation has no ${name}`);
  return typeof found === "number" ? [found] : found;
}

/** The number whose place between the bounds a raw one means (nets/policies.py `squashed`). */
function within(raw, [low, high]) {
  return Math.min(Math.max(low + (high - low) * 0.5 * (Math.tanh(raw) + 1), low), high);
}

/** log p of each choice under softmax(logits); -Infinity where `legal` forbids it. */
export function logSoftmax(logits, legal = null) {
  const values = Array.from(logits, (x, i) => (legal && !legal[i] ? -Infinity : x));
  const top = Math.max(...values);
  const total = Math.log(values.reduce((sum, x) => sum + Math.exp(x - top), 0));
  return values.map((x) => x - top - total);
}

/**
 * What a deployed model does (nets/policies.py `choose`): its best legal action, or one drawn from its probabilities
 * where its card says that it samples; by 1 - strength a uniform one.
 */
export function choose(logits, legal, strength, random = Math.random, samples = false) {
  const allowed = Array.from(logits, (_, i) => i).filter((i) => !legal || legal[i]);
  const top = allowed.reduce((best, i) => (logits[i] > logits[best] ? i : best), allowed[0]);
  const rate = strength === null || strength === undefined ? 0 : 1 - strength;
  if (samples) {
    const shares = logSoftmax(logits, legal).map((x) => (1 - rate) * Math.exp(x) + rate / allowed.length);
    let left = random();
    const drawn = allowed.find((i) => (left -= shares[i]) < 0) ?? top;
    return { action: drawn, best: top, logp: Math.log(shares[drawn]) };
  }
  const action = random() < rate ? allowed[Math.floor(random() * allowed.length)] : top;
  return { action, best: top, logp: Math.log(rate / allowed.length + (action === top ? 1 - rate : 0)) };
}

/**
 * Of choices that are nearly as good as the best one (nets/policies.py `nearly_best`): those at least `nearly` as
 * probable, by their probability, or of values those within that share of the best, alike.
 */
export function chooseNearly(logits, legal, values, random = Math.random, nearly = 0.9) {
  const best = choose(logits, legal, null, random).best;
  const limit = values ? logits[best] - (1 - nearly) * Math.abs(logits[best]) : logits[best] + Math.log(nearly);
  const near = Array.from(logits, (x, i) => (!legal || legal[i]) && x >= limit);
  return { ...choose(values ? logits.map(() => 0) : logits, near, null, random, true), best };
}

/** The same for every entry of an action, of which each has its own logits and its own part of the mask, side by side. */
export function chooseEntries(logits, legal, choices, strength, random = Math.random, samples = false) {
  const entries = parts(logits, choices).map((part, i) =>
    choose(part, legal && parts(legal, choices)[i], strength, random, samples));
  const [action, best] = [entries.map((entry) => entry.action), entries.map((entry) => entry.best)];
  return { action, best, logp: entries.reduce((sum, entry) => sum + entry.logp, 0) };
}

/** An array cut into pieces of those sizes. */
export function parts(flat, sizes) {
  let end = 0;
  return sizes.map((size) => Array.from(flat).slice(end, (end += size)));
}

/** The same for numbers between an action leaf's bounds (±1 by chance where it has none): the mean has no density. */
export function chooseNumbers(mean, { low = null, high = null }, strength, random = Math.random) {
  const best = Array.from(mean, (x) => Math.min(Math.max(x, low ?? -Infinity), high ?? Infinity));
  const rate = strength === null || strength === undefined ? 0 : 1 - strength;
  const [from, to] = [low ?? -1, high ?? 1];
  const action = random() < rate ? best.map(() => from + (to - from) * random()) : best;
  return { action, best, logp: null };
}
