// A real HTTP server that fails in the ways that servers fail, and the client's answer to each. Prints one report.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
const web = process.argv[2];
const { connect } = await import(`${web}/client.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);
const { spec } = JSON.parse(readFileSync(0, "utf8"));

const keep = new Map(); // key → content, as a store would
let script = []; // what to do with the next uploads: a status, "drop" (keep, then hang up), or nothing for 200
let uploads = 0;

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => answer(request, response, Buffer.concat(parts).toString()));
});

function answer(request, response, body) {
  const send = (status, value) => response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
  if (request.url.includes("/champion")) return send(404, { error: { message: "none", code: "missing" } });
  if (request.method === "GET") return send(200, { spec, hash: "0".repeat(64), sample_rate: 1 });
  uploads += 1;
  const order = script.shift();
  if (typeof order === "number") return send(order, { error: { message: `as told: ${order}`, code: "told" } });
  const results = JSON.parse(body).chunks.map((chunk) => {
    const { episode, seat, first_step: first } = chunk.header;
    if (order === "refuse odd" && seat === 1) return { verdict: "refused", reason: "odd seat" };
    const key = `${episode}/${seat}/${first}`;
    const had = keep.has(key);
    keep.set(key, chunk);
    return { verdict: had ? "had" : "new" };
  });
  if (order === "drop") return response.destroy();
  const refused = results.some(({ verdict }) => verdict === "refused");
  return send(refused ? 422 : 200, { results, sample_rate: 1, ...(refused && { error: { message: "odd seat" } }) });
}

await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const url = `http://127.0.0.1:${server.address().port}`;
const report = {};

async function play(connection, steps = 3, seats = 1) {
  const id = connection.episode().episode;
  for (let seat = 0; seat < seats; seat++) {
    const episode = connection.episode({ seat, episode: id });
    for (let t = 0; t < steps; t++) {
      episode.record(new Float32Array(9).fill(t / 10), t % 3, 0, { tick: t });
      episode.earn(t === steps - 1 ? 1 : 0);
    }
    episode.end(new Float32Array(9), { terminated: true, outcome: 1 });
  }
  return id;
}

for (const [name, orders, seats] of [
  ["fine", [], 1], ["busy twice", [503, 429], 1], ["answer lost", ["drop"], 1], ["one seat refused", ["refuse odd", "refuse odd"], 2],
  ["never granted", [422, 422], 2],
]) {
  script = [...orders];
  uploads = 0;
  keep.clear();
  const connection = await connect(url, { game: "duel", storage: new MemoryStorage(), random: () => 0.01 });
  connection.uploads.random = () => 0.01;
  const episode = await play(connection, 3, seats);
  const flushed = await connection.flush(10);
  report[name] = { ...connection.statistics(), flushed, uploads, stored: [...keep.values()], said: connection.kept(episode) };
  connection.close();
}

// A page that closes in the middle, and the one that opens after it, with the same storage.
const storage = new MemoryStorage();
script = Array(20).fill(503);
keep.clear();
const before = await connect(url, { game: "duel", storage });
const cut = before.episode({ seat: 0, leaving: () => new Float32Array(9).fill(0.5) });
for (let t = 0; t < 300; t++) cut.record(new Float32Array(9), 1, 0, { tick: t });
const blind = before.episode({ seat: 0 });
for (let t = 0; t < 4; t++) blind.record(new Float32Array(9).fill(t / 8), 1, 0, { tick: t });
before.close();
script = [];
const after = await connect(url, { game: "duel", storage });
const flushed = await after.flush(10);
report.reopened = { ...after.statistics(), flushed, stored: [...keep.values()].map(({ header, columns }) => ({ header, final: columns["final_observation/field"] ?? null })) };
after.close();

// A spool that is full refuses the new and counts it.
script = Array(500).fill(503);
const small = await connect(url, { game: "duel", storage: new MemoryStorage() });
small.spool.maxCharacters = 20_000;
for (let i = 0; i < 5; i++) await play(small, 200);
report.full = small.statistics();
small.close();

server.close();
server.closeAllConnections();
console.log(JSON.stringify(report));
