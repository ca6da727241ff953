// Duel for the browser: the twin of src/sparring/games/duel.py. The rules are in docs/rules.md.
// Every number of the state is an integer; x grows to the right and y downwards, from the middle of the field.

import { draw } from "./splitmix.js";
import { checkedMove } from "./checked_move.js";

export const HALF_HEIGHT = 3072;
export const PADDLE_X = 4864;
export const PADDLE_HALF = 512;
export const BALL_HALF = 96;
export const POINTS_TO_WIN = 5;
const TICKS_PER_S = 30;
const MAX_TICKS = 3600;
const PAUSE_TICKS = 15;
const PADDLE_SPEED = 160;
const PADDLE_LIMIT = HALF_HEIGHT - PADDLE_HALF;
const BALL_LIMIT = HALF_HEIGHT - BALL_HALF;
const REACH = PADDLE_HALF + BALL_HALF;
const SERVE_SPEED = 192;
const SPEED_GAIN = 24;
const MAX_SPEED = 768;
const SERVE_SLOPES = 257n;

const seat = (name) => ({ name, observation: { "observation/field": [9] }, choices: 3 });

export const spec = {
  id: "duel",
  turns: "simultaneous",
  ticksPerSecond: TICKS_PER_S,
  maxTicks: MAX_TICKS,
  seats: [seat("left"), seat("right")],
  actions: ["up", "stay", "down"],
};

export class Game {
  constructor() {
    this.seed = 0n;
    this.ball = { x: 0, y: 0, vx: 0, vy: 0 };
    this.paddle = [0, 0]; // y of the middle
    this.pause = 0;
    this.score = [0, 0];
    this.tick = 0;
    this.reward = [0, 0];
    this.ending = [1, 1]; // nothing runs before its first reset
  }

  reset(seed) {
    this.seed = seed;
    this.paddle = [0, 0];
    this.score = [0, 0];
    this.tick = 0;
    this.reward = [0, 0];
    this.ending = [0, 0];
    this.#serve();
  }

  step(actions) {
    this.reward = [0, 0];
    if (this.ending[0] !== 0) return;
    const moves = [0, 1].map((s) => checkedMove("duel", s, actions[s], 3));
    for (const s of [0, 1]) {
      const moved = this.paddle[s] + (moves[s] - 1) * PADDLE_SPEED;
      this.paddle[s] = Math.max(-PADDLE_LIMIT, Math.min(PADDLE_LIMIT, moved));
    }
    let point = 0;
    if (this.pause > 0) this.pause -= 1;
    else point = this.#fly();
    this.tick += 1;
    if (point !== 0) {
      this.score[point > 0 ? 0 : 1] += 1;
      this.reward = point > 0 ? [1, -1] : [-1, 1];
    }
    if (this.tick >= MAX_TICKS) this.ending = [2, 2];
    if (Math.max(...this.score) >= POINTS_TO_WIN) this.ending = [1, 1];
    if (point !== 0) this.#serve();
  }

  get toAct() {
    return this.ending.map((ending) => ending === 0);
  }

  get outcome() {
    const lead = Math.sign(this.score[0] - this.score[1]);
    return this.ending[0] === 0 ? [0, 0] : [lead, 0 - lead];
  }

  /** Own paddle, other paddle, ball x, y, vx, vy, pause, own score, other score; seat 1 sees x mirrored. */
  observation(seat) {
    const other = 1 - seat;
    const mirror = 1 - 2 * seat;
    const { x, y, vx, vy } = this.ball;
    const waits = this.pause > 0; // a serve is not shown before it flies
    const field = [
      this.paddle[seat] / 4096,
      this.paddle[other] / 4096,
      (mirror * x) / 8192,
      y / 4096,
      (waits ? 0 : mirror * vx) / 1024,
      (waits ? 0 : vy) / 1024,
      this.pause / 16,
      this.score[seat] / 8,
      this.score[other] / 8,
    ];
    return { "observation/field": Float32Array.from(field, (value) => value + 0) }; // + 0: never -0, which integers lack
  }

  legal(seat) {
    return null;
  }

  #serve() {
    const drawn = draw(this.seed, BigInt(this.score[0] + this.score[1]));
    const side = drawn & 1n ? 1 : -1;
    const slope = Number((drawn >> 8n) % SERVE_SLOPES) - 128;
    this.ball = { x: 0, y: 0, vx: side * SERVE_SPEED, vy: slope };
    this.pause = PAUSE_TICKS;
  }

  /** Move the ball; +1 where the left seat scores, -1 where the right one does, else 0. */
  #fly() {
    let { x, y, vx, vy } = this.ball;
    x += vx;
    y += vy;
    if (Math.abs(y) > BALL_LIMIT) {
      y = Math.sign(y) * 2 * BALL_LIMIT - y;
      vy = -vy;
    }
    const side = Math.sign(vx); // of the paddle that the ball flies towards
    const reached = Math.abs(x) >= PADDLE_X;
    const offset = y - this.paddle[side < 0 ? 0 : 1];
    const hit = reached && Math.abs(offset) <= REACH;
    if (hit) {
      const speed = Math.min(Math.abs(vx) + SPEED_GAIN, MAX_SPEED);
      x = side * 2 * PADDLE_X - x;
      vx = -side * speed;
      vy = Math.sign(offset) * Math.floor((Math.abs(offset) * speed) / REACH);
    }
    this.ball = { x, y, vx, vy };
    return reached && !hit ? side : 0;
  }
}
