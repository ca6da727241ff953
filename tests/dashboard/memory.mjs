// Standard input: {spec, network, weights (base64 of safetensors), rows}. One episode of a model that remembers, as a
// page plays it; prints the actions and the chunks that wait to be sent (to nobody: only the spool is looked at).
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { Connection } = await import(`${web}/client.js`);
const { Model } = await import(`${web}/champion.js`);
const { Network, readSafetensors } = await import(`${web}/network.js`);
const { Server } = await import(`${web}/server.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { spec, network, weights, rows } = JSON.parse(readFileSync(0, "utf8"));
const storage = new MemoryStorage();
const connection = new Connection(new Server("http://127.0.0.1:9"), storage, { spec, hash: "0".repeat(64) }, { game: spec.id });
const tensors = readSafetensors(new Uint8Array(Buffer.from(weights, "base64")));
connection.champions.model = new Model("a".repeat(64), { policy: "categorical" }, new Network(network, tensors));
const chunks = [];
connection.keep = (chunk) => chunks.push(chunk);
const episode = connection.episode();
const actions = [];
for (const row of rows) {
  const action = await episode.act({ state: Float32Array.from(row) });
  actions.push(action);
  episode.record(Float32Array.from(row), action, 1);
}
episode.end(Float32Array.from(rows[0]));
console.log(JSON.stringify({ actions, chunks }));
process.exit(0);
