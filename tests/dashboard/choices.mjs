// Standard input: [{logits, legal, strength, draws: [u1, u2]}]; prints what network.js chooses.
import { readFileSync } from "node:fs";
const { choose, logSoftmax } = await import(`${process.argv[2]}/network.js`);
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ logits, legal, strength, draws }) => {
  const left = [...draws];
  const chances = logSoftmax(logits, legal).map(Math.exp);
  return { ...choose(logits, legal, strength, () => left.shift()), chances };
})));
