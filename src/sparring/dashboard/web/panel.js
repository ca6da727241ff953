// Beside the board: who is met and how strong, advice, the tally, and what the server said it kept.

import { $, ago, brief, count, h, linked, say, server, short } from "./page.js";
import { SparringError } from "./server.js";

const REFRESH_EVERY_MS = 3000;
export const NO_ADVICE = "There is no champion yet, so there is no advice worth having.";

/** Whether the champion is another than the one held: asked of the overview, which is never a 404. */
export async function newer(connection, row = null) {
  const current = (row ?? (await overview(connection.game)))?.champion?.model ?? null;
  return current !== null && current !== connection.model;
}

/** The game's row of the overview; null while the server rests, and the model that is held plays on. */
async function overview(game) {
  try {
    const { games } = await server.get("/api/games");
    return games.find((one) => one.id === game) ?? null;
  } catch (error) {
    if (!(error instanceof SparringError)) throw error;
    return null;
  }
}

export class Panel {
  constructor(connection, game, yourData) {
    Object.assign(this, { connection, game, yourData });
    this.tally = { won: 0, drawn: 0, lost: 0 };
    this.styles = [];
    this.onAdvice = () => {};
    this.between = () => true; // whether the model may be exchanged now
    connection.onChange = () => this.show();
    this.#remembered("strength", (value) => {
      connection.strength = value === 100 ? null : value / 100;
      return value === 100 ? "at its best" : value === 0 ? "chance" : `${value} %`;
    });
    $("style").addEventListener("change", () => {
      this.#useStyle($("style").value);
      localStorage.setItem(`sparring/style/${game}`, $("style").value);
    });
    $("advice").addEventListener("change", () => this.onAdvice());
    this.show();
    setInterval(() => this.#look(), REFRESH_EVERY_MS);
  }

  get advises() {
    return $("advice").checked;
  }

  /** A slider with a pace for games by the clock; its value, in ticks a second. */
  usePace(initial) {
    $("pace-field").hidden = false;
    $("pace").value = initial;
    return this.#remembered("pace", (value) => `${value} ticks/s`);
  }

  /** Look for a newer champion unless a game is going on, and say so when the bot improved. */
  async refresh() {
    const [before, first] = [this.connection.model, !this.looked];
    this.looked = true;
    const row = await overview(this.connection.game);
    linked(row !== null); // the dot alone: the game goes on
    if (row) this.#offerStyles(row.styles);
    if (!(await newer(this.connection, row ?? {})) || !(await this.connection.refresh())) return;
    this.show();
    if (first) return; // what is found at the start is met, not learned while we watch
    const change = before === null ? "the bot has learned something" : "the bot improved";
    this.toast(`${change}: model ${short(this.connection.model)}`);
  }

  /** Who is met, from what the connection holds. */
  show() {
    const { model, champions } = this.connection;
    const card = champions.model?.card;
    const said = this.connection.statistics();
    say($("bot"), model ? `Champion no. ${said.counter}` : "No champion yet");
    say($("model"), model ? `model ${short(model)}` : "");
    const steps = card ? Object.values(card.lineage.steps).reduce((a, b) => a + b, 0) : 0;
    const seen = card?.lineage.steps.play ? `, ${brief(card.lineage.steps.play)} of them drawn from people's games` : "";
    say($("lineage"), card ? `${card.lineage.algorithm}, learned from ${brief(steps)} steps${seen}; ${ago(card.created_at_ms)}`
      : "playing at random; training makes it better without a reload");
    const notice = said.notice.startsWith("no champion") ? "" : said.notice;
    const forgetful = said.lasting ? "" : "This browser keeps nothing over a reload.";
    say($("record-note"), [said.modelProblem, notice, forgetful, said.problem].filter(Boolean).join(" "));
  }

  /** The result of a game, and then what became of its record. */
  async finished(result, match) {
    if (result) {
      this.tally[result] += 1;
      say($(result), String(this.tally[result]));
    }
    await this.kept(match);
  }

  /** "recorded ✓ n steps" once, and only if, the server said so. */
  async kept(match) {
    const kept = $("kept");
    if (!match.asked && !this.connection.record) {
      kept.dataset.state = "";
      say(kept, "this game was not recorded");
      return;
    }
    if (!match.asked) {
      kept.dataset.state = "";
      say(kept, `not asked for this time: the server takes ${Math.round(this.connection.sampleRate * 100)} % of games`);
      return;
    }
    kept.dataset.state = "";
    say(kept, "sending…");
    await this.connection.flush(10);
    const steps = this.connection.kept(match.id);
    const waiting = this.connection.statistics().waiting;
    kept.dataset.state = steps ? "kept" : "problem";
    if (steps) say(kept, `recorded ✓ ${count(steps)} steps`);
    else if (waiting) say(kept, "kept in this browser, and sent when the server answers");
    else say(kept, "the server did not keep it");
    this.show();
    await this.yourData.refresh();
  }

  advise(text) {
    $("advised").hidden = !text;
    say($("advised"), text);
  }

  toast(text) {
    const toast = $("toast");
    say(toast, text);
    toast.classList.add("up");
    clearTimeout(this.toasting);
    this.toasting = setTimeout(() => toast.classList.remove("up"), 5000);
  }

  /** The styles that the game sells; a browser that chose one finds it chosen. */
  #offerStyles(styles) {
    if (JSON.stringify(styles) === JSON.stringify(this.styles)) return;
    this.styles = styles;
    this.connection.champions.looked = false; // its next move asks for the ladder again
    $("style-field").hidden = !this.styles.length;
    const names = this.styles.map(({ name }) => h("option", { value: name }, name));
    $("style").replaceChildren(h("option", { value: "" }, "any"), ...names);
    this.#useStyle(localStorage.getItem(`sparring/style/${this.game}`) ?? "");
  }

  #useStyle(name) {
    const found = this.styles.find((one) => one.name === name);
    $("style").value = found ? name : "";
    this.connection.style = found ? name : null;
    say($("style-says"), found ? `This style: ${found.means}.` : "");
  }

  async #look() {
    if (this.between() && !document.hidden) await this.refresh();
  }

  /** A slider whose place is remembered; `apply` says in words what it means. */
  #remembered(id, apply) {
    const slider = $(id), name = `sparring/${id}`;
    slider.value = localStorage.getItem(name) ?? slider.value;
    const changed = () => {
      say($(`${id}-says`), apply(Number(slider.value)));
      localStorage.setItem(name, slider.value);
    };
    slider.addEventListener("input", changed);
    changed();
    return () => Number(slider.value);
  }
}

/** Whose turn it is to begin: the other one's, each time, also after a reload. */
export function nextSeat(game) {
  const name = `sparring/seat/${game}`;
  const seat = Number(localStorage.getItem(name) ?? 0) === 0 ? 0 : 1;
  localStorage.setItem(name, String(1 - seat));
  return seat;
}
