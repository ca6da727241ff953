// Every model of a game: how it was judged, where it comes from, and its files.

import { $, ago, brief, figure, h, poll, server, short, show } from "../page.js";

const asked = new URLSearchParams(location.search).get("game");
const SOURCES = {
  play: "people", selfplay: "self-play", collect: "mock players", node: "nodes", import: "imported", sim: "simulation",
};

/** " against tactical": records from before it was kept say nothing. */
function rival(against) {
  if (!against) return "";
  const [kind, name] = against.split(":");
  return ` against ${kind === "model" ? short(name) : name}`;
}

const signed = (elo) => `${elo < 0 ? "−" : "+"}${Math.abs(Math.round(elo))}`;

/** How much higher than the champion before it a model is rated, as the gate's interval. */
function rating(evidence) {
  return `${signed(evidence.elo_low)} to ${signed(evidence.elo_high)} Elo`;
}

function evaluation(evidence) {
  if (!evidence) return [h("span", { class: "quiet" }, "not evaluated")];
  const lines = [h("span", { class: "number" }, `${figure(evidence.mean)} ± ${figure(evidence.sd)}`),
    h("span", { class: "under" }, `mean of ${evidence.episodes} episodes${rival(evidence.against)}`)];
  const under = (words) => lines.push(h("span", { class: "under" }, words));
  const before = evidence.incumbent ? short(evidence.incumbent) : "random play";
  if (evidence.verdict) under(`the gate: ${evidence.verdict} ${evidence.verdict === "undecided" ? "beside" : "than"} ${before}`);
  if (evidence.wins !== null) {
    under(`${evidence.wins} won, ${evidence.draws} drawn, ${evidence.losses} lost against ${before}`);
    if (evidence.elo_low !== null) under(`${rating(evidence)}, ${evidence.distinct} distinct games`);
  } else if (evidence.incumbent_mean !== null) under(`${before} had ${figure(evidence.incumbent_mean)}`);
  if (evidence.by !== "gate") under(`promoted by ${evidence.by}`);
  return lines;
}

function share(steps) {
  const entries = Object.entries(steps).filter(([, n]) => n > 0);
  const total = entries.reduce((sum, [, n]) => sum + n, 0);
  const bar = h("span", { class: "share", "aria-hidden": "true" });
  for (const [source, n] of entries) {
    const part = h("i", { class: `source-${source}` });
    part.style.width = `${(100 * n) / total}%`;
    bar.append(part);
  }
  const legend = ([source, n]) =>
    h("span", {}, h("span", { class: `dot source-${source}` }), `${SOURCES[source] ?? source} ${brief(n)}`);
  return [h("span", { class: "number" }, brief(total)), bar, h("span", { class: "legend" }, entries.map(legend))];
}

/** A link to a file; with a key it is fetched by hand, since a link cannot carry one. */
function download(model, name, word) {
  const [href, saved] = [`/v1/models/${model.id}/${name}`, `${short(model.id)}-${name}`];
  return h("a", { href, download: saved, "data-file": server.token && saved }, word);
}

$("list").addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-file]");
  if (!link) return;
  event.preventDefault();
  const url = URL.createObjectURL(new Blob([await server.bytes(link.getAttribute("href"))]));
  h("a", { href: url, download: link.dataset.file }).click();
  URL.revokeObjectURL(url);
});

function row(model, index) {
  const cell = (label, ...children) => h("td", { "data-label": label }, h("div", {}, children));
  const parents = model.parents.map((id) => h("code", { class: "under", title: id }, short(id)));
  const run = h("span", { class: "under", title: model.run }, `run ${model.run.split("-").at(-1)}`);
  const files = [["card.json", "card"], ["weights.safetensors", "weights"], ["model.onnx", "ONNX"]];
  return h("tr", { class: model.champion && "champion-row", "data-model": model.id },
    cell("rank", h("span", { class: "number" }, String(index + 1))),
    cell("model", h("code", { title: model.id }, short(model.id)), " ",
      model.champion && h("span", { class: "tag champion" }, `champion no. ${model.counter}`),
      h("span", { class: "under" }, ago(model.created_at_ms))),
    cell("evaluation", evaluation(model.evidence)),
    cell("algorithm", model.algorithm, model.run && run),
    cell("learned from", share(model.steps)),
    cell("parents", parents.length ? parents : h("span", { class: "quiet" }, "none: from scratch")),
    cell("files", h("span", { class: "files" }, files.filter(([name]) => model.files.includes(name))
      .map(([name, word]) => download(model, name, word)))));
}

function table(models) {
  const rank = h("span", { class: "unseen" }, "rank");
  const heads = [rank, "model", "evaluation", "algorithm", "learned from", "parents", "files"];
  return h("div", { class: "scroll" }, h("table", { class: "stacks" },
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, models.map(row))));
}

poll(async () => {
  const { games } = await server.get("/api/games");
  const game = asked ?? games.reduce((most, one) => (one.models > most.models ? one : most)).id;
  const tab = ({ id, models: n }) => {
    const href = `/models?game=${encodeURIComponent(id)}`;
    return h("a", { href, "aria-current": id === game && "page" }, `${id} ${n || ""}`);
  };
  show($("tabs"), games.map(tab));
  const { models } = await server.get(`/api/models?game=${encodeURIComponent(game)}`);
  const empty = h("div", { class: "empty" }, h("strong", {}, "No model yet"),
    h("p", {}, "A run publishes its first one within a minute of learning:"), h("code", {}, `spar train ${game}`));
  show($("list"), models.length ? table(models) : empty);
}, 4);
