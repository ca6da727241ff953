// node playthrough.mjs WEB_FOLDER GOLDEN.json …: runs each golden playthrough with the JavaScript twin of its game and
// compares what it shows at each tick. Prints one line for each; exits with 1 where one differs.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);

function bytes(array) {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

function shown(game, seats) {
  const parts = [bytes(BigInt64Array.of(BigInt(game.tick)))];
  for (let seat = 0; seat < seats; seat++) {
    parts.push(...Object.values(game.observation(seat)).map(bytes));
    const legal = game.legal(seat);
    if (legal !== null) parts.push(bytes(legal));
    parts.push(bytes(Float32Array.of(game.reward[seat])), bytes(Float32Array.of(game.outcome[seat])));
    parts.push(Buffer.from([game.ending[seat], game.toAct[seat] ? 1 : 0]));
  }
  return Buffer.concat(parts);
}

const mark = (data) => createHash("sha256").update(data).digest("hex").slice(0, 12);

function firstDifference(twin, golden) {
  const game = new twin.Game();
  const seats = twin.spec.seats.length;
  game.reset(BigInt(golden.seed));
  for (let tick = 0; tick <= golden.actions.length; tick++) {
    if (tick > 0) game.step([...golden.actions[tick - 1]].map(Number));
    if (mark(shown(game, seats)) !== golden.marks[tick]) return `differs at tick ${tick}`;
  }
  if (shown(game, seats).toString("hex") !== golden.last) return "differs in its last view";
  return misbehaves(twin, game, seats);
}

/** What golden games cannot show: a finished game stands still, and a move that is none is refused and changes nothing. */
function misbehaves(twin, finished, seats) {
  finished.step(Array(seats).fill(0));
  const still = shown(finished, seats);
  finished.step(Array(seats).fill(0));
  if (finished.reward.some((reward) => reward !== 0) || !shown(finished, seats).equals(still)) return "does not stand still";
  const fresh = new twin.Game();
  fresh.reset(0n);
  const before = shown(fresh, seats);
  for (const wrong of [-1, 99, 0.5, NaN, undefined, "1"]) {
    const moves = Array(seats).fill(twin.spec.turns === "alternating" ? wrong : 1);
    moves[seats - 1] = wrong; // the last seat alone, where all move at once
    try {
      fresh.step(moves);
      return `takes ${wrong} as a move`;
    } catch (error) {
      if (!error.message.includes("Choose from")) throw error;
    }
  }
  return shown(fresh, seats).equals(before) ? null : "is changed by a move that it refuses";
}

for (const file of files) {
  for (const golden of JSON.parse(readFileSync(file, "utf8"))) {
    const path = resolve(folder, "games", `${golden.game.replace("-", "_")}.js`);
    const wrong = firstDifference(await import(pathToFileURL(path)), golden);
    console.log(`${golden.game} ${golden.seed}: ${wrong ?? `${golden.actions.length} ticks agree`}`);
    if (wrong) process.exitCode = 1;
  }
}
