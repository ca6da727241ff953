// Standard input: {spec, network, weights (base64 of safetensors), rows, policy, legal}. A game whose actions are numbers,
// or several choices, as a page plays it: by its model, by half its strength, and by chance; prints the actions and the chunk that waits to be sent.
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { Connection } = await import(`${web}/client.js`);
const { Model } = await import(`${web}/champion.js`);
const { Network, readSafetensors } = await import(`${web}/network.js`);
const { Server } = await import(`${web}/server.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { spec, network, weights, rows, policy = "gaussian", legal = null } = JSON.parse(readFileSync(0, "utf8"));
const connection = new Connection(
  new Server("http://127.0.0.1:9"), new MemoryStorage(), { spec, hash: "0".repeat(64) }, { game: spec.id });
const chance = await connection.think({ state: Float32Array.from(rows[0]) }, legal);
const tensors = readSafetensors(new Uint8Array(Buffer.from(weights, "base64")));
connection.champions.model = new Model("a".repeat(64), { policy }, new Network(network, tensors));
const chunks = [];
connection.keep = (chunk) => chunks.push(chunk);
const episode = connection.episode();
const actions = [];
const weakened = [];
for (const row of rows) {
  weakened.push((await connection.think({ state: Float32Array.from(row) }, legal, 0, 0.5)).action);
  const action = await episode.act({ state: Float32Array.from(row) }, legal);
  actions.push(action);
  episode.record(Float32Array.from(row), action, 1);
}
episode.end(Float32Array.from(rows[0]));
console.log(JSON.stringify({ chance, actions, weakened, chunks }));
process.exit(0);
