// Standard input: {texts, episodes: [[episode, rate]], champions: [[manifest, client]]}; prints what ids.js says of them.
import { readFileSync } from "node:fs";
const { askedFor, hex, modelFor, newEpisode, newSeed, sha256 } = await import(`${process.argv[2]}/ids.js`);
const { texts, episodes, champions } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify({
  hashes: texts.map((text) => hex(sha256(text))),
  asked: episodes.map(([episode, rate]) => askedFor(episode, rate)),
  models: champions.map(([manifest, client]) => modelFor(manifest, client)),
  made: Array.from({ length: 50 }, () => newEpisode()),
  stamped: newEpisode(1_700_000_000_123),
  seeds: Array.from({ length: 50 }, newSeed),
}));
