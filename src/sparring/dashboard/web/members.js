// How a member of a league is named on a page: scripts by their name, models by the beginning of their id.

import { short } from "./page.js";

/** "tactical", "3f9a2c81", "people", "person 1f2e3d4c". */
export function nameOf(member) {
  const [kind, name] = member.split(":");
  if (kind === "script") return name;
  if (kind === "person") return `person ${name}`;
  return member === "people" ? "people" : short(member);
}

/** A word beside the name and the class of its tag. */
export function tagOf(member, { champion = false, persons = 0 } = {}) {
  if (champion) return ["champion", "champion"];
  if (member.startsWith("script:")) return ["script", "script"];
  if (member === "people") return [`${persons} person${persons === 1 ? "" : "s"}`, "running"];
  return ["", "model"];
}
