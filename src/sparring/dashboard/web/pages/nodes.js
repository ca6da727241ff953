// Machines that joined a run: what each does, what became of what it sent, and orders to it for whoever may give them.

import { $, ago, brief, count, figure, h, linked, poll, say, server, show } from "../page.js";
import { SparringError } from "../server.js";

const LOOKS = { working: "running", relaying: "running", banned: "failed", lost: "failed" };
const GONE = new Set(["lost", "drained", "banned"]);
const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
const total = (refused) => sum(Object.values(refused), (n) => n);
const bytes = (one) => one.received_bytes + one.sent_bytes;

/** "312 kB", "4.1 MB". */
function size(n) {
  const [unit, word] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]].find(([unit]) => n >= unit) ?? [1, "bytes"];
  return `${figure(Number((n / unit).toPrecision(3)))} ${word}`;
}

const reasons = (refused) => Object.entries(refused).map(([why, n]) => `${why} ${count(n)}`).join(", ");

function orderButton(node, action, word) {
  return h("button", { class: "button plain small-button", "data-node": node, "data-action": action, type: "button",
    "aria-label": `${word} ${node}` }, word);
}

/** What may be ordered of a node: what is ordered already is taken back. */
function orders(node, said) {
  const ordered = node.node in said.orders.banned || said.orders.drained.includes(node.node);
  if (ordered) return orderButton(node.node, "allow", "Allow");
  return [GONE.has(node.state) || orderButton(node.node, "drain", "Drain"), orderButton(node.node, "ban", "Ban")]
    .filter((one) => one !== true);
}

function row(node, said) {
  const cell = (label, ...children) => h("td", { "data-label": label }, h("div", {}, children));
  const number = (words) => h("span", { class: "number" }, words);
  const under = (words) => words && h("span", { class: "under" }, words);
  const relay = node.state === "relaying";
  const none = () => h("span", { class: "quiet" }, "–");
  return h("tr", { "data-row": node.node, class: GONE.has(node.state) && "gone" },
    cell("node", h("code", {}, node.node), under(node.relay && `behind ${node.relay}`), under(node.peer),
      under(node.holder.startsWith("key:") && node.holder)),
    cell("state", h("span", { class: `tag ${LOOKS[node.state] ?? ""}` }, node.state), under(node.why)),
    cell("workers", relay ? none() : number(count(node.workers))),
    cell("steps/s", relay ? none() : [number(brief(node.steps_per_s)), under(`${brief(node.steps)} in all`)]),
    cell("lag", relay || node.version < 0 ? none() : number(`${count(node.lag)}`)),
    cell("merged", relay ? none() : [number(count(node.merges)), under(node.seen_at_ms > 0 && ago(node.seen_at_ms, said.now_ms))]),
    cell("refused", total(node.refused) ? [number(count(total(node.refused))), under(reasons(node.refused))] : none()),
    cell("moved", number(size(bytes(node))), under(node.connections > 1 && `${node.connections} connections`)),
    said.may_order && cell("orders", h("span", { class: "actions" }, orders(node, said))));
}

const RANK = ["relaying", "working", "building", "connecting", "draining", "lost", "drained", "banned"];
const order = (a, b) => RANK.indexOf(a.state) - RANK.indexOf(b.state) || Boolean(b.relay) - Boolean(a.relay)
  || a.relay.localeCompare(b.relay) || a.node.localeCompare(b.node);

function parent(one, said) {
  const heads = ["node", "state", "workers", "steps/s", "lag", "merged", "refused", "moved", ...(said.may_order ? ["orders"] : [])];
  const away = total(one.turned_away);
  const waits = h("div", { class: "empty" }, h("strong", {}, "Waiting for nodes"),
    h("p", {}, "The run printed the line with which machines join:"), h("code", {}, "spar node --join 'wss://…'"));
  const table = () => h("div", { class: "scroll" }, h("table", { class: "stacks" },
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, one.nodes.toSorted(order).map((node) => row(node, said)))));
  return h("section", { class: "card", "data-parent": one.pid },
    h("div", { class: "toolbar" }, h("h2", {}, `${one.game} by ${one.algo}`),
      h("span", { class: "tag" }, `merged by ${one.merge}`), h("span", { class: "tag" }, `codec ${one.codec}`),
      h("span", { class: "tag" }, `version ${count(one.version)}`)),
    one.nodes.length ? table() : waits,
    away > 0 && h("p", { class: "small quiet turned-away" }, `Turned away: ${reasons(one.turned_away)}`));
}

/** Orders for nodes that no run here knows now, and who may give any. */
function standing(said) {
  const shown = new Set(said.parents.flatMap((one) => one.nodes.map((node) => node.node)));
  const listed = [...Object.keys(said.orders.banned), ...said.orders.drained].filter((name) => !shown.has(name));
  const box = $("orders");
  box.hidden = !listed.length && said.may_order;
  if (!said.may_order) {
    show(box, h("p", {}, "To drain or ban nodes, use a key with the scope admin."),
      h("button", { class: "button plain small-button", id: "use-key", type: "button" }, "Use a key"));
  } else {
    show(box, h("p", {}, "Away, and drained or banned:"), listed.map((name) =>
      h("span", { class: "actions" }, h("code", {}, name), orderButton(name, "allow", "Allow"))));
  }
}

document.addEventListener("click", async (event) => {
  if (event.target.closest("#use-key")) {
    linked(true, new SparringError("orders need the scope 'admin'", { status: 403 }));
    return;
  }
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const { node, action } = button.dataset;
  if (action === "ban" && !window.confirm(`Ban ${node}? It is disconnected, and refused until it is allowed again.`)) return;
  button.disabled = true;
  try {
    await server.post("/api/nodes", { node, action, why: action === "ban" ? "an operator banned it" : "" });
    await draw(1200); // the list is made once a second
  } catch (error) {
    if (!(error instanceof SparringError)) throw error;
    linked(true, error);
    button.disabled = false;
  }
});

async function draw(afterMs = 0) {
  if (afterMs) await new Promise((done) => setTimeout(done, afterMs));
  const said = await server.get("/api/nodes");
  const nodes = said.parents.flatMap((one) => one.nodes), working = nodes.filter((one) => one.state === "working");
  say($("working"), count(working.length));
  say($("workers"), count(sum(working, (one) => one.workers)));
  say($("rate"), brief(sum(working, (one) => one.steps_per_s)));
  say($("merged"), count(sum(said.parents, (one) => one.merges)));
  say($("refused"), count(sum(said.parents, (one) => total(one.refused))));
  say($("moved"), size(sum(nodes, bytes)));
  standing(said);
  const empty = h("section", { class: "card empty" }, h("strong", {}, "No run with nodes"),
    h("p", {}, "A run accepts machines, and prints the line with which they join:"),
    h("code", {}, "spar train GAME --algo a3c --accept-nodes 0.0.0.0:8720"));
  show($("parents"), said.parents.length ? said.parents.map((one) => parent(one, said)) : empty);
}

poll(() => draw(), 2);
