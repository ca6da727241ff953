// Duel on a canvas: drawn between two ticks, so that thirty decisions a second look smooth.

import { h, isForGame } from "../page.js";
import { colours, sharpen, text } from "./cart.js";

const HALF_WIDTH = 5376, HALF_HEIGHT = 3072; // the field with some air behind the paddles
const PADDLE_X = 4864, PADDLE_HALF = 512, PADDLE_SPEED = 160, BALL_HALF = 96;
const UP = 0, STAY = 1, DOWN = 2;

export const title = "Duel";
export const rules = "First to five points. The ball gets faster with every return, and the edge of your paddle gives " +
  "it an angle. Sides change with every game.";
export const keys = "[↑] [↓] or [W] [S], or let the paddle follow your mouse or finger. [Space] begins.";

export class Board {
  constructor(root, onBegin) {
    this.canvas = h("canvas", { class: "screen", tabindex: "0", role: "img", "aria-label": "The field" });
    this.canvas.style.aspectRatio = `${HALF_WIDTH} / ${HALF_HEIGHT}`;
    root.append(this.canvas);
    this.held = new Set();
    this.target = null;
    this.trail = [];
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => { this.#point(event); onBegin(); });
    this.canvas.addEventListener("pointerleave", () => { this.target = null; });
    document.addEventListener("keydown", (event) => this.#key(event, true, onBegin));
    document.addEventListener("keyup", (event) => this.#key(event, false));
    globalThis.addEventListener("blur", () => this.held.clear());
  }

  /** What the person does now: the keys that are held, or the way to the pointer. */
  action(game, person) {
    if (this.held.size) return this.held.has(UP) === this.held.has(DOWN) ? STAY : this.held.has(UP) ? UP : DOWN;
    if (this.target === null) return STAY;
    const away = this.target - see(game).paddles[person];
    return Math.abs(away) < PADDLE_SPEED * 0.6 ? STAY : away < 0 ? UP : DOWN;
  }

  /** What is seen of the game, to be drawn between two of them. */
  look(game) {
    return see(game);
  }

  /** `part` of the way from `before` to `now`; `advice` is the bot's favourite move; `banner` lies over the field. */
  draw(before, now, part, { person, advice = null, banner = "" }) {
    const { context, width, height } = sharpen(this.canvas);
    const ink = colours("ink", "you", "bot", "line", "quiet");
    const x = (value) => ((value + HALF_WIDTH) / (2 * HALF_WIDTH)) * width;
    const y = (value) => ((value + HALF_HEIGHT) / (2 * HALF_HEIGHT)) * height;
    const unit = width / (2 * HALF_WIDTH);
    context.clearRect(0, 0, width, height);
    middle(context, width, height, ink.line);
    [0, 1].forEach((seat) => text(context, String(now.scores[seat]), width * (seat ? 0.62 : 0.38), height * 0.22,
      seat === person ? ink.you : ink.bot, { size: height * 0.17, align: "center", weight: 700 }));
    [0, 1].forEach((seat) => {
      const at = mix(before.paddles[seat], now.paddles[seat], part);
      const left = seat === 0 ? x(-PADDLE_X) - 10 : x(PADDLE_X);
      context.fillStyle = seat === person ? ink.you : ink.bot;
      context.beginPath();
      context.roundRect(left, y(at - PADDLE_HALF), 10, PADDLE_HALF * 2 * unit, 5);
      context.fill();
      if (seat !== person || advice === null || advice === STAY) return;
      arrow(context, left + 5, y(at), PADDLE_HALF * unit + 12, advice === UP ? -1 : 1, ink.you);
    });
    this.#ball(context, before, now, part, { x, y, radius: Math.max(4, BALL_HALF * unit * 1.25), ink });
    const size = Math.max(15, height * 0.052);
    if (banner) text(context, banner, width / 2, height * 0.74, ink.ink, { size, align: "center", weight: 600 });
  }

  #ball(context, before, now, part, { x, y, radius, ink }) {
    const jumped = Math.abs(now.ball[0] - before.ball[0]) > 1500; // a new serve, not a flight
    const at = jumped ? now.ball : [mix(before.ball[0], now.ball[0], part), mix(before.ball[1], now.ball[1], part)];
    this.trail = now.pause > 0 ? [] : [...this.trail.slice(-7), at];
    context.fillStyle = ink.ink;
    this.trail.forEach(([tx, ty], i) => disc(context, x(tx), y(ty), radius * (0.35 + 0.08 * i), 0.035 * (i + 1)));
    const waits = now.pause > 0 && Math.floor(now.pause * 16) % 4 < 2;
    disc(context, x(at[0]), y(at[1]), radius, waits ? 0.4 : 1);
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.target = (((event.clientY - box.top) / box.height) * 2 - 1) * HALF_HEIGHT;
  }

  #key(event, down, onBegin = () => {}) {
    if (!isForGame(event)) return;
    const way = { ArrowUp: UP, w: UP, W: UP, ArrowDown: DOWN, s: DOWN, S: DOWN }[event.key];
    if (way !== undefined) {
      this.held[down ? "add" : "delete"](way);
      this.target = null;
      event.preventDefault();
    } else if (down && event.key === " ") {
      onBegin();
      event.preventDefault();
    }
  }
}

/** Paddles, ball, scores and pause in the field's own units, from what the left seat sees. */
function see(game) {
  const seen = game.observation(0);
  const [own, other, x, y, , , pause, points, theirs] = seen["observation/field"];
  return {
    paddles: [own * 4096, other * 4096], ball: [x * 8192, y * 4096], pause,
    scores: [Math.round(points * 8), Math.round(theirs * 8)],
  };
}

const mix = (a, b, part) => a + (b - a) * part;

function disc(context, x, y, radius, opacity) {
  context.globalAlpha = opacity;
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fill();
  context.globalAlpha = 1;
}

function middle(context, width, height, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.setLineDash([6, 9]);
  context.beginPath();
  context.moveTo(width / 2, 8);
  context.lineTo(width / 2, height - 8);
  context.stroke();
  context.setLineDash([]);
}

function arrow(context, x, y, reach, way, colour) {
  context.fillStyle = colour;
  context.globalAlpha = 0.75;
  context.beginPath();
  context.moveTo(x, y + way * (reach + 11));
  context.lineTo(x - 8, y + way * reach);
  context.lineTo(x + 8, y + way * reach);
  context.fill();
  context.globalAlpha = 1;
}
