// Standard input: {url, game, trusts}. Connects once for each `trust`; prints whether a model is held, and the problem.
import { readFileSync } from "node:fs";
const web = process.argv[2];
const { connect } = await import(`${web}/client.js`);
const { MemoryStorage } = await import(`${web}/spool.js`);

const { url, game, trusts } = JSON.parse(readFileSync(0, "utf8"));
const said = [];
for (const trust of trusts) {
  const connection = await connect(url, { game, trust, storage: new MemoryStorage() });
  said.push([connection.champions.model !== null, connection.statistics().modelProblem]);
}
console.log(JSON.stringify(said));
process.exit(0);
