// Each kind of layer of wire/network.py, for one row. A pair is {place, weight: {shape, data}, bias}; an image is
// {x, channels, height, width} with its numbers as [channels, height, width], anything else {x}.

const ACTIVATIONS = { relu: (x) => (x > 0 ? x : 0), tanh: Math.tanh, none: (x) => x };
const sigmoid = (x) => (1 + Math.tanh(x / 2)) / 2; // never overflows

/** activation(x Wᵀ + b). */
export function dense({ place, weight, bias }, x, activation) {
  const { shape: [units, inputs], data } = weight;
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

/** A convolution with its activation. */
export function conv(layer, { weight: { data }, bias }, { x, channels, height, width }) {
  const { kernel, stride = 1, padding = 0 } = layer;
  const squash = ACTIVATIONS[layer.activation ?? "relu"];
  const [rows, columns] = sides(layer, height, width);
  const y = new Float32Array(bias.length * rows * columns);
  for (let out = 0, at = 0; out < bias.length; out++)
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++, at++) {
        const corner = { top: row * stride - padding, left: column * stride - padding };
        y[at] = squash(bias[out] + window(x, data, { out, channels, height, width, kernel, ...corner }));
      }
  return { x: y, channels: bias.length, height: rows, width: columns };
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

/** The largest of each window; what hangs over the edge is never the largest. */
export function pool(layer, { x, channels, height, width }) {
  const { kernel = 3, stride = 2, padding = 1 } = layer;
  const [rows, columns] = sides({ kernel, stride, padding }, height, width);
  const y = new Float32Array(channels * rows * columns).fill(-Infinity);
  for (let channel = 0, at = 0; channel < channels; channel++)
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++, at++) {
        const [top, left] = [row * stride - padding, column * stride - padding];
        for (let i = Math.max(top, 0); i < Math.min(top + kernel, height); i++)
          for (let j = Math.max(left, 0); j < Math.min(left + kernel, width); j++)
            y[at] = Math.max(y[at], x[(channel * height + i) * width + j]);
      }
  return { x: y, channels, height: rows, width: columns };
}

/** out(x + second(activation(first(activation(x))))): convolutions over an image, dense layers over numbers. */
export function residual(layer, pair, now) {
  const { kernel = 3, activation = "relu", out = "none" } = layer;
  const before = { ...now, x: now.x.map(ACTIVATIONS[activation]) };
  const [first, second] = [pair("first"), pair("second")];
  let y;
  if (now.channels === undefined) y = dense(second, dense(first, before.x, activation), "none");
  else {
    const shape = { kernel, padding: (kernel - 1) / 2 };
    y = conv({ ...shape, activation: "none" }, second, conv({ ...shape, activation }, first, before)).x;
  }
  const squash = ACTIVATIONS[out];
  return { ...now, x: now.x.map((value, i) => squash(value + y[i])) };
}

/** One step of a memory: its output, and the state that the next step is given. */
export function remember(memory, pair, x, state) {
  const u = memory.units;
  const hidden = state.slice(0, u);
  const seen = dense(pair("input"), x, "none");
  const held = dense(pair("hidden"), hidden, "none");
  if (memory.type === "gru") {
    const output = hidden.map((h, i) => {
      const [r, z] = [sigmoid(seen[i] + held[i]), sigmoid(seen[u + i] + held[u + i])];
      const n = Math.tanh(seen[2 * u + i] + r * held[2 * u + i]);
      return n + z * (h - n);
    });
    return { output, state: output };
  }
  const gate = (k, i) => seen[k * u + i] + held[k * u + i]; // i, f, g, o
  const cell = state.slice(u).map((c, i) => sigmoid(gate(1, i)) * c + sigmoid(gate(0, i)) * Math.tanh(gate(2, i)));
  const output = cell.map((c, i) => sigmoid(gate(3, i)) * Math.tanh(c));
  return { output, state: concatenate([output, cell]) };
}

/** A set [most, features] of which the first `count` are there, as `units` numbers; the others are never looked at. */
export function encode(encoder, pair, all, most, count) {
  const { units = 64, heads = 4, blocks = 1, pool: pooled = "mean" } = encoder;
  const features = all.length / most;
  const there = Math.max(0, Math.min(most, Math.ceil(count)));
  let rows = Array.from({ length: there }, (_, i) =>
    dense(pair("embed"), all.slice(i * features, (i + 1) * features), "relu"));
  for (let block = 0; block < blocks; block++) rows = attend(rows, (part) => pair(`${block}/${part}`), units, heads);
  const y = new Float32Array(units);
  if (!there) return y;
  return y.map((_, unit) => pooled === "mean" ? rows.reduce((sum, row) => sum + row[unit], 0) / there
    : rows.reduce((top, row) => Math.max(top, row[unit]), -Infinity));
}

/** One block: every entity looks at every other, then each for itself, both beside what it was. */
function attend(rows, pair, units, heads) {
  const size = units / heads;
  const parts = rows.map((row) => dense(pair("attend"), row, "none")); // query, key, value of all heads
  const mixed = parts.map((mine) => {
    const y = new Float32Array(units);
    for (let head = 0; head < heads; head++) {
      const first = head * size;
      const scores = parts.map((other) => {
        let sum = 0;
        for (let i = first; i < first + size; i++) sum += mine[i] * other[units + i];
        return sum / Math.sqrt(size);
      });
      const top = Math.max(...scores);
      const shares = scores.map((score) => Math.exp(score - top));
      const total = shares.reduce((a, b) => a + b, 0);
      for (let i = first; i < first + size; i++)
        y[i] = parts.reduce((sum, other, j) => sum + shares[j] * other[2 * units + i], 0) / total;
    }
    return y;
  });
  return rows.map((row, i) => {
    const joined = add(row, dense(pair("join"), mixed[i], "none"));
    return add(joined, dense(pair("second"), dense(pair("first"), joined, "relu"), "none"));
  });
}

/** All parts in a row. */
export function concatenate(parts) {
  if (parts.length === 1) return parts[0];
  const all = new Float32Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function add(a, b) {
  return a.map((x, i) => x + b[i]);
}

function sides({ kernel, stride = 1, padding = 0 }, height, width) {
  return [height, width].map((side) => Math.floor((side + 2 * padding - kernel) / stride) + 1);
}
