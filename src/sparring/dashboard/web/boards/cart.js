// A cart and its pole on a canvas: one drawing for the page that watches and the page that plays.

const TRACK = 2.4; // metres from the middle to either end
const POLE = 1.0; // metres

/** Sizes the canvas to its place on the screen; its 2-D context, in CSS pixels. */
export function sharpen(canvas) {
  const ratio = globalThis.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** The colours of the style sheet, by name, as they are now. */
export function colours(...names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Draw a cart at state [x, ẋ, θ, θ̇] on a track in the box {top, height, width}. */
export function drawCart(context, state, { top, height, width, pole, ink, line, label = "" }) {
  const unit = Math.min((width - 40) / (2 * TRACK), (height * 0.62) / POLE);
  const floor = top + height * 0.82;
  const x = width / 2 + state[0] * unit;
  context.lineCap = "round";
  context.strokeStyle = line;
  context.lineWidth = 2;
  stroke(context, width / 2 - TRACK * unit, floor, width / 2 + TRACK * unit, floor);
  for (const end of [-TRACK, TRACK]) {
    const stop = width / 2 + end * unit;
    stroke(context, stop, floor - 7, stop, floor + 7);
  }
  const cart = { w: unit * 0.46, h: unit * 0.22 };
  context.fillStyle = ink;
  context.beginPath();
  context.roundRect(x - cart.w / 2, floor - cart.h, cart.w, cart.h, cart.h * 0.28);
  context.fill();
  const [px, py] = [x + Math.sin(state[2]) * POLE * unit, floor - cart.h - Math.cos(state[2]) * POLE * unit];
  context.strokeStyle = pole;
  context.lineWidth = Math.max(4, unit * 0.075);
  stroke(context, x, floor - cart.h, px, py);
  context.fillStyle = ink;
  context.beginPath();
  context.arc(x, floor - cart.h, Math.max(2.5, unit * 0.035), 0, 7);
  context.fill();
  if (label) text(context, label, 16, top + 24, ink);
}

/** Words on a canvas, in the page's font. */
export function text(context, words, x, y, colour, { size = 14, align = "left", weight = 500 } = {}) {
  context.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = align;
  context.fillStyle = colour;
  context.fillText(words, x, y);
}

function stroke(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
