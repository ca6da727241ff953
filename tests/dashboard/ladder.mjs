// Standard input: {url, game, observation, strengths}. Prints what is thought at each strength: model and logp.
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { connect } = await import(`${web}/client.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { url, game, observation, strengths } = JSON.parse(readFileSync(0, "utf8"));
const connection = await connect(url, { game, storage: new MemoryStorage(), random: () => 0.999 });
const board = { "observation/board": Float32Array.from(observation.flat(3)) };
const said = [];
for (const strength of strengths) {
  const { model, actor, action, logp } = await connection.think(board, null, 0, strength);
  said.push({ model, actor, action, logp });
}
console.log(JSON.stringify(said));
process.exit(0);
