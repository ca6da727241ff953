// CartPole for a person: their cart below, the champion's above, both from the same start.

import { h, isForGame } from "../page.js";
import { colours, drawCart, sharpen, text } from "./cart.js";

const LEFT = 0, RIGHT = 1;

export const title = "CartPole";
export const rules = "Push the cart left or right to keep the pole up. The cart is pushed at every tick: the way you " +
  "last chose. The champion starts from the same place, above you.";
export const keys = "[←] [→] or [A] [D] push, and so does a press on either half of the picture. The first one begins.";

export class Board {
  constructor(root, onBegin) {
    this.onBegin = onBegin;
    this.way = RIGHT;
    this.canvas = h("canvas", { class: "screen carts", tabindex: "0", role: "img", "aria-label": "Two carts" });
    this.canvas.style.aspectRatio = "16 / 11";
    const pressed = (way) => (event) => {
      event.preventDefault();
      this.#push(way);
    };
    const pad = (way, word) =>
      h("button", { type: "button", class: "button plain", onpointerdown: pressed(way) }, word);
    root.append(this.canvas, h("div", { class: "pads" }, pad(LEFT, "◀ left"), pad(RIGHT, "right ▶")));
    this.canvas.addEventListener("pointerdown", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.#push(event.clientX < box.left + box.width / 2 ? LEFT : RIGHT);
    });
    document.addEventListener("keydown", (event) => {
      if (!isForGame(event)) return;
      const way = { ArrowLeft: LEFT, a: LEFT, A: LEFT, ArrowRight: RIGHT, d: RIGHT, D: RIGHT }[event.key];
      if (way === undefined) return;
      this.#push(way);
      event.preventDefault();
    });
  }

  action() {
    return this.way;
  }

  look(game) {
    const seen = game.observation(0);
    return Array.from(seen["observation/state"]);
  }

  /** Both carts, `part` of the way between two ticks. */
  draw(before, now, part, { bot, botTicks, ticks, advice = null, banner = "" }) {
    const { context, width, height } = sharpen(this.canvas);
    const ink = colours("ink", "you", "bot", "line", "quiet");
    const between = now.map((value, i) => before[i] + (value - before[i]) * part);
    context.clearRect(0, 0, width, height);
    const share = height * 0.4;
    const above = { top: 0, height: share, pole: ink.bot, ink: ink.quiet, label: `bot: ${botTicks} ticks` };
    const below = { top: share, height: height - share, pole: ink.you, ink: ink.ink, label: `you: ${ticks} ticks` };
    drawCart(context, bot, { width, line: ink.line, ...above });
    drawCart(context, between, { width, line: ink.line, ...below });
    const size = Math.max(14, height * 0.036);
    if (banner) text(context, banner, width / 2, height - size * 0.75, ink.ink, { size, align: "center", weight: 600 });
    if (advice === null) return;
    const [sign, away] = advice === LEFT ? ["◀", -34] : ["▶", 34];
    text(context, sign, width / 2 + away, height - 12, ink.you, { size: 22, align: "center" });
  }

  #push(way) {
    this.way = way;
    this.onBegin();
  }
}
