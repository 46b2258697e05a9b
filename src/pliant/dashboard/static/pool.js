// The page of a pool: who has which device, who waits and why, what teams may use.

import {Lanes} from "./charts.js";
import {ask, every} from "./api.js";
import {card, clock, duration, el, table, tell, text} from "./dom.js";

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
      pair("waiting", "Claims that wait")), this.said);
    this.span = el("span", {class: "quiet"});
    this.replay = el("input", {type: "range", min: 0, max: 288, value: 288, "aria-label": "Moment that is shown", oninput: () => this.update()});
    this.playing = el("button", {type: "button", onclick: () => this.play()}, "Play");
    this.replaying = el("div", {class: "row", hidden: true}, this.playing, this.replay, (this.moment = el("span", {class: "quiet"})));
    this.lanes = new Lanes({onReplica: (lane) => this.showDevice(lane), onMark() {}, paint: (claim) => this.paint(claim), label: "Who had which device when"});
    this.claims = table([["Claim", "t"], ["Team", ""], ["Priority", ""], ["State", ""], ["Has", "n"], ["Asks", "n"], ["Since", "n"], ["Why", "w"]], "nobody asks for anything", "Claims", true);
    this.teams = table([["Team", ""], ["Uses", "n"], ["Quota", "n"], ["Borrows at most", "n"], ["Reclaims from", ""]], "no team", "Teams");
    this.moves = table([["When", "t"], ["What", "w"]], "nothing has happened yet", "Who took what from whom", true);
    this.devices = table([["Device", ""], ["Claim", ""], ["Memory", "n"], ["Health", ""]], "no device", "Devices of the pool");
    this.shown = [figures, card("Devices over time", el("div", {class: "row"}, this.span), this.replaying, this.lanes.shown), card("Claims", this.claims.shown),
      el("div", {class: "two"}, card("Who took what from whom", this.moves.shown), el("div", {}, card("Teams", this.teams.shown), card("Devices", this.devices.shown)))];
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
    this.claims.fill(status.claims.map((claim) => [el("span", {}, el("i", {class: `swatch ${this.paint(claim.name)}`}), claim.name), claim.team, claim.priority,
      el("span", {class: `state ${claim.state}`}, claim.state), claim.devices.length, claim.min >= claim.ask ? claim.ask : `${claim.min}\u2013${claim.ask}`,
      duration(Math.max(0, now - claim.since)), claim.reason]));
    this.teams.fill(status.teams.map((team) => [team.team, team.share, team.quota ?? "none", team.borrow_limit ?? "all", team.reclaim_from.replaceAll("_", " ")]));
    this.devices.fill(status.devices.map((one) => [one.name ?? one.device, one.claim ?? "", one.memory_bytes ? `${Math.round(one.memory_bytes / 2 ** 30)} GB` : "",
      one.note ?? (one.is_blocked ? "in use by somebody else" : one.is_cordoned ? "cordoned" : "")]));
  }

  drawView(view, at) {
    const names = new Map(this.status.devices.map((one) => [one.device, one.name ?? String(one.device)]));
    this.view = {resizes: [], lanes: this.status.devices.map((one) => ({replica: names.get(one.device), node: "", how: "",
      spans: (view.lanes.find((lane) => lane.device === one.device)?.spans ?? []).map(([claim, since, end]) => [claim, since, Math.min(end ?? view.to, view.to)])})),
      from: view.from, to: Math.max(this.whole.to, view.from + 1)};
    this.replaying.hidden = !view.ended;
    text(this.moment, clock(at ?? view.to));
    text(this.span, `${clock(view.from, true)} to ${clock(this.whole.to)} (${duration(this.whole.to - view.from)})`);
    this.repaint();
    this.moves.fill(view.moves.map((move) => [clock(move.at), move.text]).reverse());
  }

  showDevice(lane) {
    const rows = table([["Since", "t"], ["Claim", ""], ["For", "n"]], "nobody had it", `Who had ${lane.replica}`);
    rows.fill(lane.spans.map(([claim, from, to]) => [clock(from), claim, duration((to ?? this.view.to) - from)]).reverse());
    tell(`Device ${lane.replica}`, rows.shown);
  }
}
