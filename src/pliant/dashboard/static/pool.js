// The page of a pool: who has which device, who waits and why, what teams may use.

import {Lanes} from "./charts.js";
import {act, ask, every} from "./api.js";
import {card, clock, counted, dialog, duration, el, table, text} from "./dom.js";

const opener = (label, onclick) => el("button", {type: "button", class: "text", onclick}, label);
const POOL_AGAIN_MS = 2000, PLAY_MS = 150, COLOURS = 8;

export class PoolPage {
  constructor(base, {linked}) {
    this.base = base;
    this.linked = linked;
    this.colours = new Map();
    this.next = 0;
    this.facts = {};
    const pair = (name, label) => el("div", {}, el("dt", {}, label), (this.facts[name] = el("dd")));
    this.said = el("p", {class: "why warn"});
    const figures = el("section", {class: "card"}, el("dl", {class: "facts"}, pair("used", "Devices in use"), pair("idle", "Idle"), pair("out", "Out of use"),
      pair("waiting", "Claims that wait")), this.said, this.verbs());
    this.span = el("span", {class: "quiet"});
    this.replay = el("input", {type: "range", min: 0, max: 288, value: 288, "aria-label": "Moment that is shown", oninput: () => this.update()});
    this.playing = el("button", {type: "button", onclick: () => this.play()}, "Play");
    this.replaying = el("div", {class: "row", hidden: true}, this.playing, this.replay, (this.moment = el("span", {class: "quiet"})));
    this.lanes = new Lanes({onReplica: (lane) => this.showDevice(lane.of), onMark() {}, paint: (claim) => this.paint(claim), label: "Who had which device when"});
    this.claims = table([["Claim", "t"], ["Team", ""], ["Priority", ""], ["State", ""], ["Has", "n"], ["Asks", "n"], ["Since", "n"], ["Why", "w"]], "nobody asks for anything", "Claims", true);
    this.teams = table([["Team", ""], ["Uses", "n"], ["Quota", "n"], ["Borrows at most", "n"], ["Reclaims from", ""]], "no team", "Teams");
    this.moves = table([["When", "t"], ["What", "w"]], "nothing has happened yet", "Who took what from whom", true);
    this.devices = table([["Device", ""], ["Claim", ""], ["Memory", "n"], ["Health", ""]], "no device", "Devices of the pool");
    this.shown = [figures, card("Devices over time", el("div", {class: "row"}, this.span), this.replaying, this.lanes.shown), card("Claims", this.claims.shown),
      el("div", {class: "two"}, card("Who took what from whom", this.moves.shown), el("div", {}, card("Teams", this.teams.shown), card("Devices", this.devices.shown)))];
  }

  verbs() {
    const button = (label, act, kind) => el("button", {type: "button", class: kind, onclick: act}, label);
    this.number = el("input", {type: "number", min: 0, "aria-label": "Devices wanted"});
    this.counting = el("span", {class: "row"}, this.number, button("Set devices", () => this.setDevices()));
    return this.acting = el("div", {class: "row", hidden: true}, this.counting, button("New team\u2026", () => this.showTeam({team: "", quota: null, borrow_limit: null})),
      el("span", {class: "push"}), button("Stop the pool", () => this.act("Stop the pool?", ["Who has devices keeps them, and nobody is given any more until it is started again."], "Stop", "stop", undefined, true), "danger"));
  }

  async act(title, lines, verb, path, body, isDangerous = false, method = "POST") {
    await act(`${this.base}${path}`, title, lines, verb, body, isDangerous, method);
    this.update();
  }

  setDevices() {
    const devices = Number(this.number.value);
    this.act(`Let there be ${counted(devices, "device")}?`, [`There are ${this.status.size}. Who has too many gives some back.`], "Set", "devices", {devices});
  }

  async start() { await this.update(); this.close = every(POOL_AGAIN_MS, () => this.whole?.ended || this.update()); }

  close() {}

  // Of a pool that is over: from the moment that is shown, or from the beginning, to the end.
  play() {
    if (this.stop) return this.pause();
    if (this.replay.value === this.replay.max) this.replay.value = 0;
    text(this.playing, "Pause");
    this.stop = every(PLAY_MS, () => { this.replay.stepUp(); if (this.replay.value === this.replay.max) this.pause(); this.update(); });
  }

  pause() { this.stop?.(); this.stop = null; text(this.playing, "Play"); }

  // The moment that is asked for; null: now, or the end of a pool that is over.
  at() { return this.whole?.ended && this.replay.value !== this.replay.max ? this.whole.began + (this.whole.ended - this.whole.began) * this.replay.value / this.replay.max : null; }

  repaint() { if (this.view) this.lanes.draw(this.view, [this.view.from, this.view.to]); }

  async update() {
    if (this.isAsking) return void (this.isAgain = true);
    this.isAsking = true;
    const at = this.at();
    try {
      const [status, view] = await Promise.all([ask(`${this.base}status${at == null ? "" : `?at=${at}`}`), ask(`${this.base}view${at == null ? "" : `?to=${at}`}`)]);
      if (at == null) this.whole = view;
      this.draw(status, at ?? view.ended ?? Date.now() / 1000);
      this.drawView(view, at);
      this.linked(true);
    } catch (error) {
      this.linked(false, error.message, error.status);
    }
    this.isAsking = false;
    if (this.isAgain) { this.isAgain = false; this.update(); }
  }

  // The same colour for a claim as long as the page is open; those that stand now share none, as far as there are enough.
  paint(claim) {
    const taken = new Set(this.status.claims.map((one) => this.colours.get(one.name)));
    for (let tried = 0; !this.colours.has(claim); tried++) {
      const next = `p${this.next++ % COLOURS}`;
      if (tried >= COLOURS || !taken.has(next)) this.colours.set(claim, next);
    }
    return this.colours.get(claim);
  }

  draw(status, now) {
    this.status = status;
    document.title = `${status.pool} \u00b7 pool \u00b7 pliant`;
    text(document.getElementById("title"), `pool ${status.pool}`);
    const waiting = status.claims.filter((claim) => ["waiting", "suspended"].includes(claim.state)).length;
    text(this.facts.used, `${status.in_use} of ${status.limit}`);
    text(this.facts.idle, String(status.free));
    text(this.facts.out, String(Math.max(0, status.limit - status.in_use - status.free)));
    text(this.facts.waiting, String(waiting));
    const awaited = status.recovering.length ? `started anew, waits for ${status.recovering.join(", ")} to say what they hold` : "";
    text(this.said, status.failure ? `the state cannot be written: ${status.failure}` : awaited);
    this.claims.fill(status.claims.map((claim) => [el("span", {}, el("i", {class: `swatch ${this.paint(claim.name)}`}), opener(claim.name, () => this.showClaim(claim))), claim.team, claim.priority,
      el("span", {class: `state ${claim.state}`}, claim.state), claim.devices.length, claim.min >= claim.ask ? claim.ask : `${claim.min}\u2013${claim.ask}`,
      duration(Math.max(0, now - claim.since)), claim.reason]));
    this.teams.fill(status.teams.map((team) => [opener(team.team, () => this.showTeam(team)), team.share, team.quota ?? "none", team.borrow_limit ?? "all", team.reclaim_from.replaceAll("_", " ")]));
    this.devices.fill(status.devices.map((one) => [opener(one.name ?? String(one.device), () => this.showDevice(one)), one.claim ?? "", one.memory_bytes ? `${Math.round(one.memory_bytes / 2 ** 30)} GB` : "",
      one.note ?? (one.is_blocked ? "in use by somebody else" : one.is_cordoned ? "cordoned" : "")]));
  }

  drawView(view, at) {
    const names = new Map(this.status.devices.map((one) => [one.device, one.name ?? String(one.device)]));
    this.acting.hidden = Boolean(view.ended);
    this.counting.hidden = this.status.devices.some((one) => one.name);
    if (document.activeElement !== this.number && this.shownSize !== this.status.size) this.number.value = this.shownSize = this.status.size;
    this.view = {resizes: [], lanes: this.status.devices.map((one) => ({replica: names.get(one.device), of: one, node: "", how: "",
      spans: (view.lanes.find((lane) => lane.device === one.device)?.spans ?? []).map(([claim, since, end]) => [claim, since, Math.min(end ?? view.to, view.to)])})),
      from: view.from, to: Math.max(this.whole.to, view.from + 1)};
    this.replaying.hidden = !view.ended;
    text(this.moment, clock(at ?? view.to));
    text(this.span, `${clock(view.from, true)} to ${clock(this.whole.to)} (${duration(this.whole.to - view.from)})`);
    this.repaint();
    this.moves.fill(view.moves.map((move) => [clock(move.at), move.text]).reverse());
  }

  // What there is to say, and, of a pool that runs, what may be asked for: [label, act, class].
  show(title, children, verbs) {
    const box = dialog(title, children, [...(this.acting.hidden ? [] : verbs).map(([label, act, kind]) => el("button", {type: "button", class: kind, onclick: () => { box.close(); act(); }}, label)),
      el("button", {type: "button", class: "main", onclick: () => box.close()}, "Close")]);
  }

  showClaim(claim) {
    const has = claim.devices.length ? `has ${claim.devices.map((device) => this.status.devices.find((one) => one.device === device)?.name ?? device).join(", ")}` : "has nothing";
    this.show(claim.name, [el("p", {class: "quiet"}, `${claim.state}, ${claim.priority}, team ${claim.team}, ${has}`), el("p", {}, claim.reason)],
      [["Release\u2026", () => this.act(`Release ${claim.name}?`, ["Its job or command ends within its notice, and what it has is free."], "Release", "release", {claim: claim.name}, true), "danger"]]);
  }

  showTeam({team, quota, borrow_limit: limit}) {
    const input = (label, value, more) => el("input", {"aria-label": label, value: value ?? "", ...more}), whole = {type: "number", min: 0};
    const name = input("Name", team, {disabled: Boolean(team)}), quotas = input("Quota", quota, {...whole, placeholder: "none"}), limits = input("Borrows at most", limit, {...whole, placeholder: "all"});
    const asked = ({value}) => value === "" ? null : Number(value), path = () => `teams/${encodeURIComponent(name.value)}`;
    const said = ({value}, otherwise) => value === "" ? otherwise : value;
    const change = () => this.act(`Set team ${name.value}?`, [`Quota ${said(quotas, "none")}, borrows at most ${said(limits, "all")}. What it has beyond its quota, others may take back.`], "Set", path(),
      {name: name.value, quota: asked(quotas), borrowLimit: asked(limits)}, false, "PUT");
    this.show(team ? `Team ${team}` : "New team", [["Name", name], ["Quota", quotas], ["Borrows at most", limits]].map(([label, field]) => el("label", {class: "row"}, label, field)),
      [["Set\u2026", change], ...(team ? [["Remove\u2026", () => this.act(`Remove team ${team}?`, ["It must have no claims."], "Remove", path(), undefined, true, "DELETE"), "danger"]] : [])]);
  }

  showDevice(one) {
    const called = one.name ?? String(one.device), rows = table([["Since", "t"], ["Claim", ""], ["For", "n"]], "nobody had it", `Who had ${called}`);
    const spans = this.view.lanes.find((lane) => lane.of.device === one.device).spans;
    rows.fill(spans.map(([claim, from, to]) => [clock(from), claim, duration(to - from)]).reverse());
    const why = el("input", {type: "text", "aria-label": "Why", placeholder: "why, for who looks later", maxlength: 200}), out = one.is_cordoned || one.is_drained;
    const ask = (verb, title, line, isDangerous) => [`${verb}\u2026`, () => this.act(`${title} ${called}?`, [line], verb, `devices/${one.device}/${verb.toLowerCase()}`, {reason: why.value}, isDangerous), isDangerous ? "danger" : undefined];
    const again = ["Uncordon\u2026", () => this.act(`Hand out ${called} again?`, [], "Uncordon", `devices/${one.device}/uncordon`)];
    this.show(`Device ${called}`, [one.note ? el("p", {}, one.note) : null, rows.shown, this.acting.hidden || out ? null : el("p", {}, why)].filter(Boolean),
      out ? [again] : [ask("Cordon", "Hand out no more", "Who has it keeps it."), ask("Drain", "Take back", one.claim ? `${one.claim} gives it back within its notice, and it is handed out no more.` : "It is handed out no more.", true)]);
  }
}
