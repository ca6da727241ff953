// What every page does: build elements, say numbers and times in words, poll, and show what went wrong.

import { Server, SparringError } from "./server.js";

const TOKEN = "sparring/token";

export const $ = (id) => document.getElementById(id);
export const server = new Server("", localStorage.getItem(TOKEN));

/** An element: `h("p", {class: "quiet"}, "text", child)`. Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

const NOTHING = [null, undefined, false];
const there = (children) => children.flat(Infinity).filter((child) => !NOTHING.includes(child));

/** A line of text in which [Enter] is a key. */
export function withKeys(text) {
  return text.split(/\[(.+?)\]/).map((part, i) => (i % 2 ? h("kbd", {}, part) : part));
}

/** Replace the children only when they would read differently, so that a poll disturbs neither focus nor selection. */
export function show(parent, ...children) {
  const fresh = document.createElement(parent.tagName);
  fresh.append(...there(children));
  if (fresh.innerHTML !== parent.innerHTML) parent.replaceChildren(...fresh.childNodes);
}

/** Whether a key belongs to the page's game: no chord, and not meant for the control that has the focus. */
export function isForGame(event) {
  const [chord, at] = [event.ctrlKey || event.metaKey || event.altKey, event.target];
  if (chord || at.matches?.("input[type=text], input[type=password], select, textarea")) return false;
  if (event.key.startsWith("Arrow")) return !at.matches?.("input[type=range]");
  return event.key !== " " || !at.matches?.("input, button, a");
}

/** Set a text, unless it is there already: screen readers announce every change. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (n) => (Math.abs(n) < 1e6 ? WHOLE.format(n) : SHORT.format(n));
export const brief = (n) => (Math.abs(n) < 10_000 ? WHOLE.format(n) : SHORT.format(n));
export const short = (model) => model.slice(0, 8);

/** A number with as many digits as matter. */
export function figure(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e4) return SHORT.format(x);
  return String(Number(x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)));
}

const SPANS = [[1, "second"], [60, "minute"], [3600, "hour"], [86_400, "day"]];

/** "just now", "4 minutes ago". */
export function ago(ms, now = Date.now()) {
  const seconds = Math.max(0, (now - ms) / 1000);
  if (seconds < 10) return "just now";
  const [size, unit] = SPANS.findLast(([size]) => seconds >= size);
  const n = Math.floor(seconds / size);
  return `${n} ${unit}${n === 1 ? "" : "s"} ago`;
}

/** "0:45", "3:20", "1:20:00". */
export function clock(seconds) {
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** Do it now, then again `everyS` seconds after it is done, less often while the page is hidden. */
export function poll(task, everyS) {
  const turn = async () => {
    try {
      await task();
      linked(true);
    } catch (error) {
      if (!(error instanceof SparringError)) throw error;
      linked(error.status !== 0, error);
    }
    setTimeout(turn, (document.hidden ? 15 : everyS) * 1000);
  };
  return turn();
}

/** The dot in the corner, and the sentence above the page where something is wrong. */
export function linked(up, error = null) {
  const link = $("link");
  link.dataset.state = up ? "live" : "down";
  say(link, up ? "live" : "no answer");
  const problem = $("problem");
  problem.hidden = error === null;
  if (error?.status === 401 || error?.status === 403) askForKey(problem, error);
  else if (error) say(problem, error.message);
}

function askForKey(problem, error) {
  if (problem.querySelector("form")) return;
  const input = h("input", { type: "password", name: "key", "aria-label": "Key", autocomplete: "current-password" });
  const keep = (event) => {
    event.preventDefault();
    localStorage.setItem(TOKEN, input.value.trim());
    location.reload();
  };
  const form = h("form", { onsubmit: keep }, input, h("button", { class: "button" }, "Use this key"));
  const words = `${error.message} This server asks for a key: \`spar keys create\` makes one.`;
  problem.replaceChildren(h("p", {}, words), form);
}
