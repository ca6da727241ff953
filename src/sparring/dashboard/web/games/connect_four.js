// Connect Four for the browser: the twin of src/sparring/games/connect_four.py. The rules are in docs/rules.md.

import { checkedMove } from "./checked_move.js";

export const COLUMNS = 7;
export const ROWS = 6;
const LINES = [[0, 1], [1, 0], [1, 1], [1, -1]];

const seat = (name) => ({ name, observation: { "observation/board": [2, ROWS, COLUMNS] }, choices: COLUMNS });

export const spec = {
  id: "connect-four",
  turns: "alternating",
  ticksPerSecond: 0, // it waits for its players
  maxTicks: COLUMNS * ROWS,
  seats: [seat("first"), seat("second")],
  actions: ["1", "2", "3", "4", "5", "6", "7"],
};

export class Game {
  constructor() {
    this.board = new Int8Array(ROWS * COLUMNS).fill(-1); // the seat whose stone lies there; the top row first
    this.tick = 0;
    this.reward = [0, 0];
    this.ending = [1, 1]; // nothing runs before its first reset
    this.outcome = [0, 0];
    this.line = []; // the cells of a winning four, for the board that draws them
  }

  reset(_seed) {
    this.board.fill(-1);
    this.tick = 0;
    this.reward = [0, 0];
    this.ending = [0, 0];
    this.outcome = [0, 0];
    this.line = [];
  }

  step(actions) {
    this.reward = [0, 0];
    if (this.ending[0] !== 0) return;
    const mover = this.tick % 2;
    const column = checkedMove("connect-four", mover, actions[mover], COLUMNS, this.legal(mover));
    let row = ROWS - 1;
    while (this.board[row * COLUMNS + column] !== -1) row -= 1;
    this.board[row * COLUMNS + column] = mover;
    this.tick += 1;
    this.line = this.#four(row, column, mover);
    if (this.line.length) {
      this.outcome = mover === 0 ? [1, -1] : [-1, 1];
      this.reward = [...this.outcome];
    }
    if (this.line.length || this.tick === COLUMNS * ROWS) this.ending = [1, 1];
  }

  get toAct() {
    const running = this.ending[0] === 0;
    return [running && this.tick % 2 === 0, running && this.tick % 2 === 1];
  }

  observation(seat) {
    const planes = new Uint8Array(2 * ROWS * COLUMNS);
    this.board.forEach((owner, cell) => {
      if (owner !== -1) planes[(owner === seat ? 0 : ROWS * COLUMNS) + cell] = 1;
    });
    return { "observation/board": planes };
  }

  legal(seat) {
    const asked = this.toAct[seat]; // all ones for a seat that is not asked
    return Uint8Array.from({ length: COLUMNS }, (_, column) => (!asked || this.board[column] === -1 ? 1 : 0));
  }

  /** The cells of a line of four or more through the stone just dropped, or []. */
  #four(row, column, mover) {
    const owns = (r, c) => r >= 0 && r < ROWS && c >= 0 && c < COLUMNS && this.board[r * COLUMNS + c] === mover;
    for (const [down, right] of LINES) {
      let [r, c] = [row, column];
      while (owns(r - down, c - right)) [r, c] = [r - down, c - right];
      const cells = [];
      for (; owns(r, c); r += down, c += right) cells.push(r * COLUMNS + c);
      if (cells.length >= 4) return cells;
    }
    return [];
  }
}
