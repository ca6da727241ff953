// Standard input: {url, game, rows}. Connects to a gateway and asks its champion about each row; prints whether this
// client may run models itself, whether it holds a network, and what was decided.
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { connect } = await import(`${web}/client.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { url, game, rows } = JSON.parse(readFileSync(0, "utf8"));
const connection = await connect(url, { game, storage: new MemoryStorage() });
const { model, local } = connection.champions;
const decided = [];
for (const row of rows) decided.push(await connection.think({ state: Float32Array.from(row) }, null, 0, 1));
console.log(JSON.stringify({ local, holds: model.network !== null, decided }));
process.exit(0);
