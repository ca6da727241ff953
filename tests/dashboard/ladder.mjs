// Standard input: {url, game, observation, strengths, styles, act}. Prints what is thought at each strength, in the style
// at its place: model and logp; then the notice.
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { connect } = await import(`${web}/client.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { url, game, observation, strengths, styles = [], act = "local" } = JSON.parse(readFileSync(0, "utf8"));
const connection = await connect(url, { game, act, storage: new MemoryStorage(), random: () => 0.999 });
const board = { "observation/board": Float32Array.from(observation.flat(3)) };
const said = [];
for (const [at, strength] of strengths.entries()) {
  connection.style = styles[at] ?? null;
  try {
    const { model, actor, action, logp } = await connection.think(board, null, 0, strength);
    said.push({ model, actor, action, logp });
  } catch (error) {
    said.push({ refused: error.name === "SparringError" && error.wrong });
  }
}
said.push({ styles: (await connection.styles()).map(({ name, means }) => ({ name, means })) });
said.push({ notice: connection.statistics().notice });
console.log(JSON.stringify(said));
process.exit(0);
