// Names of things, and the two rules that follow from an episode's name alone: the same as wire/ids.py.
//
// SHA-256 is written out because WebCrypto hides it from pages that are not served over TLS or from this
// machine, and because an episode must know at its start, without waiting, whether it is asked for.

const K = new Uint32Array(64);
const START = new Uint32Array(8);
fillConstants();

function fillConstants() {
  // The first 32 bits of the fractions of the cube (and square) roots of the first primes.
  const fraction = (x) => Math.floor((x - Math.floor(x)) * 2 ** 32) >>> 0;
  for (let candidate = 2, found = 0; found < 64; candidate++) {
    let prime = true;
    for (let d = 2; d * d <= candidate; d++) if (candidate % d === 0) prime = false;
    if (!prime) continue;
    K[found] = fraction(Math.cbrt(candidate));
    if (found < 8) START[found] = fraction(Math.sqrt(candidate));
    found++;
  }
}

/** The 32 bytes of SHA-256 over a Uint8Array, or over a string as UTF-8. */
export function sha256(data) {
  const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
  const padded = new Uint8Array(((bytes.length + 8) >> 6 << 6) + 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, (bytes.length << 3) >>> 0);
  const h = START.slice();
  const w = new Uint32Array(64);
  for (let block = 0; block < padded.length; block += 64) compress(h, w, view, block);
  const out = new Uint8Array(32);
  h.forEach((word, i) => new DataView(out.buffer).setUint32(i * 4, word));
  return out;
}

function compress(h, w, view, block) {
  const rotate = (x, n) => (x >>> n) | (x << (32 - n));
  for (let i = 0; i < 16; i++) w[i] = view.getUint32(block + i * 4);
  for (let i = 16; i < 64; i++) {
    const a = w[i - 15], b = w[i - 2];
    const s0 = rotate(a, 7) ^ rotate(a, 18) ^ (a >>> 3);
    const s1 = rotate(b, 17) ^ rotate(b, 19) ^ (b >>> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, z] = h;
  for (let i = 0; i < 64; i++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const t1 = (z + s1 + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    z = g; g = f; f = e; e = (d + t1) | 0;
    d = c; c = b; b = a; a = (t1 + t2) | 0;
  }
  [a, b, c, d, e, f, g, z].forEach((word, i) => { h[i] += word; });
}

/** Bytes as lower-case hex digits. */
export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A fresh UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then chance. */
export function newEpisode(nowMs = Date.now()) {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  for (let i = 0; i < 6; i++) bytes[i] = Math.floor(nowMs / 2 ** (8 * (5 - i))) & 0xff;
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  return hex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Whether an episode opened under `sampleRate` is to be uploaded: the same answer everywhere and for every seat. */
export function askedFor(episode, sampleRate) {
  const view = new DataView(sha256(episode).buffer);
  const drawn = (BigInt(view.getUint32(0)) << 32n) | BigInt(view.getUint32(4));
  const limit = sampleRate * 2 ** 64;
  return limit >= 2 ** 64 || drawn < BigInt(Math.ceil(Math.max(limit, 0)));
}

/** The model that this client runs while a new champion is rolled out by share of clients (wire/champion.py). */
export function modelFor(champion, client) {
  if (!champion.previous) return champion.model;
  const view = new DataView(sha256(`${champion.model}/${client}`).buffer);
  const drawn = (view.getUint32(0) * 2 ** 32 + view.getUint32(4)) / 2 ** 64;
  return drawn < (champion.rollout_share ?? 1) ? champion.model : champion.previous;
}

/** A seed that survives JSON: a whole number below 2^53. */
export function newSeed() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}
