// SplitMix64 by counter, as in src/sparring/games/game_state.py: draw k of a seed depends on (seed, k) alone.

const MASK = (1n << 64n) - 1n;

/** The k-th 64-bit number of a seed; both are BigInt, k counts from 0. */
export function draw(seed, k) {
  let z = (seed + (k + 1n) * 0x9e3779b97f4a7c15n) & MASK;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
}

/** A number in [0, 1): the upper 53 bits of draw(seed, k). */
export function uniform(seed, k) {
  return Number(draw(seed, k) >> 11n) * 2 ** -53;
}
