// CartPole for the browser: the twin of src/sparring/games/cartpole.py. The rules are in docs/rules.md.

import { uniform } from "./splitmix.js";
import { checkedMove } from "./checked_move.js";

const GRAVITY = 9.8;
const POLE_MASS = 0.1;
const TOTAL_MASS = POLE_MASS + 1.0;
const HALF_LENGTH = 0.5;
const POLE_MOMENT = POLE_MASS * HALF_LENGTH;
const FORCE = 10.0;
const TICK_S = 0.02;
const MAX_ANGLE = (12 * 2 * Math.PI) / 360;
const MAX_POSITION = 2.4;
const MAX_TICKS = 500;
const START_SPREAD = 0.05;
const SIN = [-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800];
const COS = [-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600];

export const spec = {
  id: "cartpole",
  turns: "simultaneous",
  ticksPerSecond: 50,
  maxTicks: MAX_TICKS,
  seats: [{ name: "cart", observation: { "observation/state": [4] }, choices: 2 }],
  actions: ["left", "right"],
};

export class Game {
  constructor() {
    this.state = [0, 0, 0, 0]; // position, velocity, angle, angular velocity
    this.tick = 0;
    this.reward = [0];
    this.ending = [1]; // nothing runs before its first reset
  }

  reset(seed) {
    this.state = [0n, 1n, 2n, 3n].map((k) => -START_SPREAD + 2 * START_SPREAD * uniform(seed, k));
    this.tick = 0;
    this.reward = [0];
    this.ending = [0];
  }

  step(actions) {
    this.reward = [0];
    if (this.ending[0] !== 0) return;
    const force = checkedMove("cartpole", 0, actions[0], 2) === 1 ? FORCE : -FORCE;
    const [x, xDot, theta, thetaDot] = this.state;
    const sin = theta + theta * series(SIN, theta);
    const cos = 1.0 + series(COS, theta);
    const push = (force + POLE_MOMENT * (thetaDot * thetaDot) * sin) / TOTAL_MASS;
    const thetaAcc =
      (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - (POLE_MASS * (cos * cos)) / TOTAL_MASS));
    const xAcc = push - (POLE_MOMENT * thetaAcc * cos) / TOTAL_MASS;
    this.state = [x + TICK_S * xDot, xDot + TICK_S * xAcc, theta + TICK_S * thetaDot, thetaDot + TICK_S * thetaAcc];
    this.tick += 1;
    this.reward = [1];
    if (this.tick >= MAX_TICKS) this.ending = [2];
    if (Math.abs(this.state[0]) > MAX_POSITION || Math.abs(this.state[2]) > MAX_ANGLE) this.ending = [1];
  }

  get toAct() {
    return [this.ending[0] === 0];
  }

  get outcome() {
    return [this.ending[0] === 0 ? 0 : this.tick];
  }

  observation(seat) {
    return { "observation/state": new Float32Array(this.state) };
  }

  legal(seat) {
    return null;
  }
}

// Our own sine and cosine, since browsers and libraries differ in the last bit of theirs.
function series(coefficients, angle) {
  const square = angle * angle;
  let sum = coefficients[5];
  for (let i = 4; i >= 0; i--) sum = sum * square + coefficients[i];
  return sum * square;
}
