// Connect Four on the screen: seven buttons over a drawing, so that mouse, finger, keyboard and screen reader all play.

import { h, isForGame, s } from "../page.js";

const COLUMNS = 7, ROWS = 6;
const CELL = 100, EDGE = 14, ABOVE = 88;
const WIDTH = 2 * EDGE + COLUMNS * CELL, HEIGHT = ABOVE + 2 * EDGE + ROWS * CELL;
const centre = (column, row) => [EDGE + (column + 0.5) * CELL, ABOVE + EDGE + (row + 0.5) * CELL];

export const title = "Connect Four";
export const rules = "Drop stones into columns; four in a line, in any direction, win. Who begins changes each game.";
export const keys = "[1]–[7] or [←] [→] and [Enter] drop a stone; so does a click or a tap.";

export class Board {
  constructor(root, onColumn) {
    this.onColumn = onColumn;
    this.stones = s("g", {});
    this.over = s("g", {});
    this.drawn = new Map(); // "column,row" → element
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "The board" },
      s("rect", { class: "back", x: 4, y: ABOVE + 4, width: WIDTH - 8, height: HEIGHT - ABOVE - 8, rx: 24 }),
      this.stones, s("path", { class: "board", "fill-rule": "evenodd", d: front() }), rims(), this.over);
    this.buttons = Array.from({ length: COLUMNS }, (_, column) => h("button", {
      type: "button", "aria-label": `Column ${column + 1}`, "aria-disabled": "true", onclick: () => onColumn(column),
      onpointerenter: () => this.#ghost(column), onpointerleave: () => this.#ghost(null),
      onfocus: () => this.#ghost(column), onblur: () => this.#ghost(null),
    }));
    const columns = h("div", { class: "columns", role: "group", "aria-label": "Columns" }, this.buttons);
    root.append(h("div", { class: "four" }, this.svg, columns));
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Show the game as it is; new stones fall. `turn`: the person may move. */
  draw(game, person, { turn = false, advice = null } = {}) {
    const planes = board(game, 0);
    const legal = game.legal(person);
    this.turn = turn;
    this.legal = legal;
    for (let column = 0; column < COLUMNS; column++)
      for (let row = ROWS - 1; row >= 0; row--) {
        const owner = planes[row * COLUMNS + column] ? 0 : planes[ROWS * COLUMNS + row * COLUMNS + column] ? 1 : null;
        this.#place(column, row, owner === null ? null : owner === person ? "you" : "bot");
      }
    this.buttons.forEach((button, column) => this.#label(button, column, planes, turn && legal[column]));
    this.#advise(advice, planes);
    if (!turn) this.#ghost(null);
  }

  /** Ring the four that won. */
  celebrate(game) {
    for (const cell of game.line) {
      const key = `${cell % COLUMNS},${Math.floor(cell / COLUMNS)}`;
      this.drawn.get(key)?.classList.add("won");
    }
  }

  #place(column, row, whose) {
    const key = `${column},${row}`;
    const there = this.drawn.get(key);
    if (!whose) {
      there?.remove();
      this.drawn.delete(key);
      return;
    }
    if (there) return;
    const [x, y] = centre(column, row);
    const rings = [s("circle", { class: "ring", r: 31 }), s("circle", { class: "mark", r: 38, fill: "none" })];
    const stone = s("g", { class: `stone ${whose}` }, s("circle", { r: 45 }), rings);
    stone.style.transform = `translate(${x}px, ${EDGE}px)`;
    this.stones.append(stone);
    this.drawn.set(key, stone);
    stone.getBoundingClientRect(); // the start of the fall has to be laid out before its end is set
    stone.style.transitionDuration = `${140 + 110 * Math.sqrt(row + 1)}ms`;
    stone.style.transform = `translate(${x}px, ${y}px)`;
  }

  #label(button, column, planes, open) {
    const free = freeIn(planes, column);
    button.setAttribute("aria-label", `Column ${column + 1}, ${free ? `${free} free` : "full"}`);
    button.setAttribute("aria-disabled", String(!open));
  }

  #ghost(column) {
    this.over.querySelector(".ghost")?.remove();
    if (column === null || !this.turn || !this.legal[column]) return;
    const [x] = centre(column, 0);
    this.over.append(s("g", { class: "ghost" }, s("circle", { cx: x, cy: 44, r: 42 })));
  }

  #advise(column, planes) {
    this.over.querySelectorAll(".hint, .hint-label").forEach((old) => old.remove());
    if (column === null) return;
    const [x, y] = centre(column, freeIn(planes, column) - 1);
    this.over.append(s("circle", { class: "hint", cx: x, cy: y, r: 38 }));
  }

  #key(event) {
    if (!isForGame(event)) return;
    const here = this.buttons.indexOf(document.activeElement);
    if (/^[1-7]$/.test(event.key)) {
      this.onColumn(Number(event.key) - 1);
      event.preventDefault();
    } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const step = event.key === "ArrowLeft" ? -1 : 1;
      this.buttons[here < 0 ? 3 : (here + step + COLUMNS) % COLUMNS].focus();
      event.preventDefault();
    }
  }
}

function board(game, seat) {
  const seen = game.observation(seat);
  return seen["observation/board"];
}

function freeIn(planes, column) {
  let free = 0;
  while (free < ROWS && !planes[free * COLUMNS + column] && !planes[(ROWS + free) * COLUMNS + column]) free++;
  return free;
}

/** The board's front with round holes in it, as one path. */
function front() {
  const r = 43, corner = 28;
  const [left, top, right, bottom] = [0, ABOVE, WIDTH, HEIGHT];
  const turn = (x, y) => `A${corner} ${corner} 0 0 1 ${x} ${y}`;
  const round = [
    `M${left + corner} ${top}H${right - corner}`, turn(right, top + corner), `V${bottom - corner}`,
    turn(right - corner, bottom), `H${left + corner}`, turn(left, bottom - corner), `V${top + corner}`,
    turn(left + corner, top), "Z",
  ].join("");
  const holes = cells().map(([x, y]) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`);
  return round + holes.join("");
}

function rims() {
  return s("g", {}, cells().map(([cx, cy]) => s("circle", { class: "rim", cx, cy, r: 43 })));
}

function cells() {
  const all = [];
  for (let column = 0; column < COLUMNS; column++) for (let row = 0; row < ROWS; row++) all.push(centre(column, row));
  return all;
}
