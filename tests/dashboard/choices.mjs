// Standard input: [{logits, legal, strength, samples, draws: [u1, u2]}]; prints what network.js chooses.
import { readFileSync } from "node:fs";
const { choose, chooseNearly, logSoftmax } = await import(`${process.argv[2]}/network.js`);
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({ logits, legal, strength, samples, draws }) => {
  const left = [...draws];
  const chances = logSoftmax(logits, legal).map(Math.exp);
  const near = [false, true].map((values) => chooseNearly(logits, legal, values, () => draws[0]));
  return { near, ...choose(logits, legal, strength, () => left.shift(), samples), chances };
})));
