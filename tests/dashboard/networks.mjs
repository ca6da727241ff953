// Standard input: [{spec, weights (base64 of safetensors), rows: [{leaf: flat list}]}]; prints the heads of every row.
// Each row is the next step of one episode: a memory's state goes from row to row.
import { readFileSync } from "node:fs";
const { Network, readSafetensors } = await import(`${process.argv[2]}/network.js`);
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ spec, weights, rows }) => {
  const network = new Network(spec, readSafetensors(new Uint8Array(Buffer.from(weights, "base64"))));
  let state = null;
  return rows.map((row) => {
    const outputs = network.run(row, state);
    state = outputs.state ?? null;
    return Object.fromEntries(Object.entries(outputs).map(([name, out]) => [name, [...out]]));
  });
})));
