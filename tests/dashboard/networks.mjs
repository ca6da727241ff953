// Standard input: [{spec, weights (base64 of safetensors), rows: [{leaf: flat list}]}]; prints the heads of every row.
import { readFileSync } from "node:fs";
const { Network, readSafetensors } = await import(`${process.argv[2]}/network.js`);
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ spec, weights, rows }) => {
  const network = new Network(spec, readSafetensors(new Uint8Array(Buffer.from(weights, "base64"))));
  return rows.map((row) => Object.fromEntries(Object.entries(network.run(row)).map(([name, out]) => [name, [...out]])));
})));
