// Runs a model's network in plain JavaScript: the spec of wire/network.py on weights from a safetensors file.
//
// Numbers are float32 where they are kept and double where they are summed, so results agree with NumPy to
// about 1e-6. One observation at a time: a browser plays one game.

const DTYPES = { F32: Float32Array, F64: Float64Array, I32: Int32Array, U8: Uint8Array };
const ACTIVATIONS = { relu: (x) => (x > 0 ? x : 0), tanh: Math.tanh, none: (x) => x };
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

/** A network ready to run: `run({leaf: array}) → {head: Float32Array}`. */
export class Network {
  constructor(spec, tensors) {
    this.spec = spec;
    this.tensors = tensors;
  }

  run(observation) {
    const parts = [];
    const images = this.spec.inputs.filter((input) => input.image);
    if (images.length) parts.push(this.#image(images, observation));
    for (const input of this.spec.inputs)
      if (!input.image) parts.push(prepare(input, leafOf(observation, input.name)));
    const features = concatenate(parts);
    const trunk = this.#stack("trunk", this.spec.trunk ?? [], features);
    const outputs = {};
    for (const head of this.spec.heads) {
      const own = head.name === "value" && this.spec.separate_value;
      const from = own ? this.#stack("value_trunk", this.spec.trunk ?? [], features) : trunk;
      outputs[head.name] = this.#head(head, from);
    }
    return outputs;
  }

  /** All images joined along their channels, through the image layers, flat again. */
  #image(inputs, observation) {
    const x = concatenate(inputs.map((input) => prepare(input, leafOf(observation, input.name))));
    const [height, width] = inputs[0].shape.slice(-2);
    let now = { x, channels: x.length / (height * width), height, width };
    (this.spec.image ?? []).forEach((layer, i) => {
      now = layer.type === "conv" ? this.#conv(`image/${i}`, layer, now)
        : { x: this.#dense(`image/${i}`, now.x, layer.activation ?? "tanh") };
    });
    return now.x;
  }

  #stack(place, layers, x) {
    return layers.reduce((now, layer, i) => this.#dense(`${place}/${i}`, now, layer.activation ?? "tanh"), x);
  }

  #head(head, x) {
    const advantage = this.#dense(head.name, x, "none");
    if (!head.dueling) return advantage;
    const mean = advantage.reduce((a, b) => a + b, 0) / advantage.length;
    const [value] = this.#dense(`${head.name}/value`, x, "none");
    return advantage.map((a) => value + a - mean);
  }

  #dense(place, x, activation) {
    const { shape: [units, inputs], data } = this.#tensor(`${place}/weight`);
    const bias = this.#tensor(`${place}/bias`).data;
    if (inputs !== x.length) throw new Error(`${place} takes ${inputs} numbers and was given ${x.length}`);
    const squash = ACTIVATIONS[activation];
    const y = new Float32Array(units);
    for (let unit = 0, at = 0; unit < units; unit++) {
      let sum = bias[unit];
      for (let i = 0; i < inputs; i++) sum += data[at++] * x[i];
      y[unit] = squash(sum);
    }
    return y;
  }

  #conv(place, layer, { x, channels, height, width }) {
    const { kernel, stride = 1, padding = 0 } = layer;
    const { data } = this.#tensor(`${place}/weight`);
    const bias = this.#tensor(`${place}/bias`).data;
    const squash = ACTIVATIONS[layer.activation ?? "relu"];
    const rows = Math.floor((height + 2 * padding - kernel) / stride) + 1;
    const columns = Math.floor((width + 2 * padding - kernel) / stride) + 1;
    const y = new Float32Array(layer.channels * rows * columns);
    for (let out = 0, at = 0; out < layer.channels; out++)
      for (let row = 0; row < rows; row++)
        for (let column = 0; column < columns; column++, at++) {
          const corner = { top: row * stride - padding, left: column * stride - padding };
          y[at] = squash(bias[out] + window(x, data, { out, channels, height, width, kernel, ...corner }));
        }
    return { x: y, channels: layer.channels, height: rows, width: columns };
  }

  #tensor(name) {
    const found = this.tensors[name];
    if (!found) throw new Error(`the weights have no ${name}`);
    return found;
  }
}

/** The sum of one kernel laid over one place of the image; what hangs over the edge is zero. */
function window(x, weights, { out, channels, height, width, kernel, top, left }) {
  let sum = 0;
  for (let channel = 0; channel < channels; channel++)
    for (let i = 0; i < kernel; i++) {
      const row = top + i;
      if (row < 0 || row >= height) continue;
      const line = (channel * height + row) * width;
      const at = ((out * channels + channel) * kernel + i) * kernel;
      for (let j = 0; j < kernel; j++) {
        const column = left + j;
        if (column >= 0 && column < width) sum += x[line + column] * weights[at + j];
      }
    }
  return sum;
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

function concatenate(parts) {
  if (parts.length === 1) return parts[0];
  const all = new Float32Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** log p of each choice under softmax(logits); -Infinity where `legal` forbids it. */
export function logSoftmax(logits, legal = null) {
  const values = Array.from(logits, (x, i) => (legal && !legal[i] ? -Infinity : x));
  const top = Math.max(...values);
  const total = Math.log(values.reduce((sum, x) => sum + Math.exp(x - top), 0));
  return values.map((x) => x - top - total);
}

/** What a deployed model does (learn/policies.py `choose`): its best legal action, or by 1 - strength a uniform one. */
export function choose(logits, legal, strength, random = Math.random) {
  const allowed = Array.from(logits, (_, i) => i).filter((i) => !legal || legal[i]);
  const top = allowed.reduce((best, i) => (logits[i] > logits[best] ? i : best), allowed[0]);
  const rate = strength === null || strength === undefined ? 0 : 1 - strength;
  const action = random() < rate ? allowed[Math.floor(random() * allowed.length)] : top;
  return { action, best: top, logp: Math.log(rate / allowed.length + (action === top ? 1 - rate : 0)) };
}
