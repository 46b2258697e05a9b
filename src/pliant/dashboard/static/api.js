// What the page asks of its server, or of the data that lies in it (an exported report).

import {confirmed, tell} from "./dom.js";

export const mode = document.documentElement.dataset.mode;
export const data = mode === "file" ? JSON.parse(document.getElementById("data").textContent) : null;

export class Refused extends Error {
  constructor(sentence, status) { super(sentence); this.status = status; }
}

export async function ask(path, {method = "GET", body, as = "json"} = {}) {
  if (data) {
    const held = data[path.split("?")[0]] ?? {detail: "an exported report does not hold this"};
    return held.detail ? Promise.reject(new Refused(held.detail, 404)) : held;
  }
  const headers = body === undefined ? {} : {"Content-Type": "application/json"};
  let answer;
  try {
    answer = await fetch(path, {method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store"});
  } catch {
    throw new Refused("nobody answers: the process has ended, or the way to it is cut", 0);
  }
  if (!answer.ok) throw new Refused(await sentence(answer), answer.status);
  return as === "json" ? answer.json() : {bytes: await answer.arrayBuffer(), next: answer.headers.get("Pliant-Next")};
}

async function sentence(answer) {
  try {
    const {detail} = await answer.json();
    return typeof detail === "string" ? detail : detail.map((one) => `${one.loc.at(-1)}: ${one.msg}`).join("; ");
  } catch {
    return `HTTP status ${answer.status}`;
  }
}

// Asks for something that a person has confirmed, and tells what was answered.
export async function act(path, title, lines, verb, body, isDangerous = false, method = "POST") {
  if (!await confirmed(title, lines, verb, isDangerous)) return;
  try {
    const said = await ask(path, {method, body});
    tell(verb, said.reason || "accepted");
  } catch (error) {
    tell(`${verb}: refused`, error.message);
  }
}

// A code in the address is good once: it becomes a cookie, and leaves the address.
export async function logIn() {
  const said = new URLSearchParams(location.hash.slice(1)), code = said.get("code");
  if (!code || data) return;
  history.replaceState(null, "", location.pathname + (said.has("run") ? `#run=${said.get("run")}` : ""));
  const answer = await fetch("login", {method: "POST", headers: {"X-Pliant-Code": code}});
  if (!answer.ok) throw new Refused(await sentence(answer), answer.status);
}

export function every(ms, act) {
  const timer = setInterval(act, ms);
  return () => clearInterval(timer);
}

// Calls changed() when the run has changed: told by the server, else every few seconds.
export function follow(base, changed, linked) {
  let rest = null;
  const source = new EventSource(`${base}changes`);
  source.onopen = () => { rest?.(); rest = null; linked(true); };
  source.onmessage = () => changed();
  source.onerror = () => { rest ??= every(3000, changed); };
  return () => { source.close(); rest?.(); };
}
