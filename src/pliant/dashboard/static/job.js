// The page of one job: where it stands and why, what happened, and what may be done about it.

import {Chart, HARMLESS, Lanes} from "./charts.js";
import {act, ask, data, every, follow} from "./api.js";
import {card, clock, counted, dialog, duration, el, pause, short, table, tell, text} from "./dom.js";
import {LogPanel} from "./logs.js";
import {until} from "./replay.js";

const OVER = ["finished", "failed", "stopped", "suspended", "lost", "killed", "elsewhere"];
const RANGES = [["", "All of it"], ["86400", "Last day"], ["3600", "Last hour"], ["600", "Last 10 min"], ["60", "Last minute"]];
const PARTS = [["compute", "c-training"], ["data", "c-starting"], ["exchange", "c-joining"], ["waiting", "c-lost"], ["other", "c-waiting"]];
const AGAIN_MS = 1000, ENDED_MS = 4000;

const ended = (lane) => HARMLESS.includes(lane.how) ? lane.how : `lost (${lane.how})`;

export class JobPage {
  constructor(base, {linked, canResume = false}) {
    this.base = base;
    this.linked = linked;
    this.canResume = canResume;
    this.zoom = null;
    this.facts = {};
    const onZoom = (range) => { this.zoom = range; this.range.value = range ? "zoom" : ""; this.update(); };
    this.size = new Chart([
      {label: "devices for", colour: "quiet", stepped: true, dash: [2, 3], width: 1},
      {label: "wanted", colour: "accent", stepped: true, dash: [6, 4]},
      {label: "training", colour: "c-training", stepped: true, fill: true, width: 2}], {low: true, label: "Replicas over time", onZoom});
    this.speed = new Chart([
      {label: "samples/s", colour: "accent"},
      {label: "loss", colour: "lead", scale: "right"}], {label: "Samples per second and loss over time", onZoom});
    this.steps = new Chart([
      {label: "longest", colour: "c-starting", unit: "s", width: 1},
      {label: "step time", colour: "accent", unit: "s"}], {label: "Step time in seconds", onZoom});
    this.lanes = new Lanes({onReplica: (lane) => this.showReplica(lane), onMark: (resize) => this.showResize(resize)});
    this.parts = new Chart(PARTS.map(([name, colour]) => ({label: name, colour, unit: "s"})), {label: "What the time of a step goes to, in seconds", onZoom, stacked: true});
    this.charts = [this.size, this.speed, this.steps, this.parts];
    this.build();
  }

  build() {
    const fact = (name, label) => [el("dt", {}, label), (this.facts[name] = el("dd"))];
    const pair = (name, label) => el("div", {}, fact(name, label));
    this.progress = el("progress", {max: 1, value: 0, "aria-label": "Steps done"});
    this.why = el("p", {class: "why"});
    this.doubts = el("div", {class: "doubts", role: "status"});
    this.headline = el("section", {class: "card", "aria-label": "Where the job stands"},
      el("dl", {class: "facts"}, pair("step", "Step"), pair("size", "Replicas"), pair("eta", "Left"), pair("speed", "Speed"),
        pair("loss", "Loss"), pair("checkpoint", "Checkpoint"), pair("lost", "Steps lost"), pair("idle", "Last step")),
      this.progress, this.why, this.doubts, this.verbs());
    this.range = el("select", {"aria-label": "Stretch of time", onchange: () => { this.zoom = null; this.update(); }},
      RANGES.map(([value, label]) => el("option", {value}, label)), el("option", {value: "zoom", disabled: true}, "Chosen in a chart"));
    this.span = el("span", {class: "quiet"});
    this.replay = el("input", {type: "range", min: 0, max: 1000, value: 1000, "aria-label": "Moment that is shown", oninput: () => this.draw(this.whole)});
    this.replaying = el("label", {class: "row", hidden: true}, "Replay", this.replay, (this.moment = el("span", {class: "quiet"})));
    const over = card("Size", el("div", {class: "row"}, this.range, this.span, el("span", {class: "quiet push hide-small"}, "drag in a chart to look closer, double-click for all")),
      this.replaying, this.size.shown, el("h3", {class: "quiet legend"}, "Replicas: a dot is a resize, a cross a loss"), this.lanes.shown);
    this.events = table([["When", "t"], ["What", "w"]], "nothing yet", "What happened", true);
    this.resizes = table([["When", "t"], ["Step", "n"], ["What", "w"], ["Pause", "n"]], "no resize in this time", "Resizes", true);
    this.pauses = table([["Cause", ""], ["Times", "n"], ["Pause", "n"], ["Longest", "n"], ["Steps lost", "n"]], "none in this time", "Pauses by cause");
    this.kept = table([["When", "t"], ["Checkpoint", "w"], ["Steps", "n"], ["Took", "n"]], "none yet", "Checkpoints");
    this.devices = table([["Replica", ""], ["State", ""], ["Node", ""], ["Device", ""], ["For", "n"]], "nobody lives", "Replicas and their devices");
    this.decisions = table([["When", "t"], ["Replicas", "n"], ["Why", "w"]], "nothing was decided yet", "Decisions");
    this.proved = el("div", {role: "status"}, el("p", {class: "quiet"}, "Counts every sample in the ledger of the run; a long one takes a while."));
    this.logs = new LogPanel(this.base);
    const proof = card("Proof", this.proved, el("div", {class: "row"}, el("button", {type: "button", onclick: () => this.prove()}, "Audit the run")));
    this.shown = [this.headline, over, el("div", {class: "two"}, card("Speed", this.speed.shown), card("Step time", this.steps.shown)),
      el("div", {class: "two"}, card("What a step's time goes to", this.parts.shown, el("p", {class: "quiet"}, "Mean of the replicas. Waiting: for the slowest of them. Other: the tail, saving, changes of size.")),
        card("Pauses by cause", this.pauses.shown)),
      el("div", {class: "two"}, card("Resizes", this.resizes.shown), card("Events", this.events.shown)),
      el("div", {class: "two"}, card("Why this size", this.decisions.shown), card("Devices", this.devices.shown)),
      el("div", {class: "two"}, card("Checkpoints", this.kept.shown), proof), card("Output", this.logs.shown)];
  }

  verbs() {
    if (data) return null;
    const button = (label, act, kind) => el("button", {type: "button", class: kind, onclick: act}, label);
    this.target = el("input", {type: "number", min: 1, "aria-label": "Replicas wanted"});
    this.running = el("div", {class: "row"}, this.target, button("Scale", () => this.scale()), button("Policy\u2026", () => this.policy()),
      button("Checkpoint now", () => this.save()),
      el("span", {class: "push"}), button("Suspend", () => this.suspend()), button("Stop", () => this.stop(), "danger"));
    this.ended = el("div", {class: "row"}, button("Resume", () => this.act("Resume the run from its newest checkpoint?", [], "Resume", "resume", {})));
    this.running.hidden = this.ended.hidden = true;
    return el("div", {}, this.running, this.ended);
  }

  async start() {
    this.shown.forEach((one) => one.hidden = false);
    await this.update();
    this.ticking = setInterval(() => this.tick(), 1000);
    this.logs.start();
  }

  // A job that has ended is looked at now and then: somebody may resume it.
  followUp() {
    if (data || this.isFollowing === !this.whole.ended) return;
    this.isFollowing = !this.whole.ended;
    this.stopFollowing?.();
    this.stopFollowing = this.isFollowing ? follow(this.base, () => this.updateSoon(), this.linked) : every(ENDED_MS, () => this.update());
  }

  close() { this.stopFollowing?.(); clearInterval(this.ticking); clearTimeout(this.soon); this.logs.close(); }

  repaint() { for (const chart of this.charts) chart.repaint(); if (this.whole) this.draw(this.whole); }

  // At most once a second, and never two at once.
  updateSoon() {
    if (this.soon) return;
    this.soon = setTimeout(async () => { await this.update(); this.soon = null; }, AGAIN_MS);
  }

  asked() {
    const many = Math.min(1000, Math.max(100, Math.round(window.innerWidth / 2)));
    if (this.zoom) return `?from=${this.zoom[0]}&to=${this.zoom[1]}&points=${many}`;
    const last = Number(this.range.value);
    const end = this.whole?.ended ?? Date.now() / 1000 - (this.ahead ?? 0);
    return last ? `?from=${end - last}&points=${many}` : `?points=${many}`;
  }

  // The stretch of a report, which holds all that it will ever show.
  chosen({from, to}) {
    const last = Number(this.range.value);
    return this.zoom ?? [last ? Math.max(from, to - last) : from, Math.max(to, from + 1)];
  }

  async update() {
    try {
      this.draw(await ask(`${this.base}view${this.asked()}`));
      this.linked(true);
      this.followUp();
    } catch (error) {
      this.linked(false, error.message, error.status);
    }
  }

  // At the moment of the slider, of a run that has ended.
  shownOf(whole) {
    this.whole = whole;
    const share = Number(this.replay.value) / 1000, at = whole.from + share * (whole.to - whole.from), is_replayed = whole.ended != null && share < 1;
    this.replaying.hidden = whole.ended == null;
    text(this.moment, is_replayed ? clock(at) : "drag to see it as it was");
    return is_replayed ? until(whole, at) : whole;
  }

  draw(whole) {
    const view = this.view = this.shownOf(whole);
    this.ahead = Date.now() / 1000 - view.now;
    const {headline, steps, from, to} = view, range = data ? this.chosen(view) : [from, Math.max(to, from + 1)];
    document.title = `${headline.job} \u00b7 ${headline.state} \u00b7 pliant`;
    text(document.getElementById("title"), headline.job || "job");
    const state = document.getElementById("state");
    text(state, headline.state);
    state.className = `state ${headline.state}`;
    this.drawHeadline(headline);
    text(this.span, `${clock(range[0], true)} to ${clock(range[1])} (${duration(range[1] - range[0])})`);
    const changes = view.size.map(([at, ...values]) => [Math.max(at, from), ...values]);
    if (changes.length) changes.push([Math.min(to, view.ended ?? to), ...changes.at(-1).slice(1)]);
    const column = (at) => changes.map((change) => change[at]);
    this.size.draw([column(0), column(3), column(2), column(1)], range);
    this.lanes.draw(view, range);
    const idle = changes.flatMap(([at, size], n) => size ? [] : [[at, changes[n + 1]?.[0] ?? to]]);
    this.speed.draw([steps.at, steps.samples_per_s, steps.loss], range, idle);
    this.steps.draw([steps.at, steps.longest_s, steps.step_s], range, idle);
    this.parts.draw([steps.at, ...PARTS.map(([name]) => steps[`${name}_s`])], range, idle);
    this.drawTables(view);
  }

  drawHeadline(line) {
    const is_over = OVER.includes(line.state), total = line.total_steps;
    const bounds = line.max_replicas == null ? "" : ` (${line.min_replicas}\u2013${line.max_replicas})`;
    text(this.facts.step, `${line.step}${total == null ? "" : ` of ${total}`}`);
    text(this.facts.size, is_over ? `none${bounds}` : `${line.size}${line.target_replicas == null ? "" : ` of ${line.target_replicas} wanted`}${bounds}`);
    text(this.facts.eta, is_over ? "ended" : line.eta_s == null ? "\u2013" : duration(line.eta_s));
    text(this.facts.speed, line.samples_per_s == null ? "\u2013" : `${short(line.samples_per_s)} samples/s`);
    text(this.facts.loss, short(line.loss));
    text(this.facts.lost, String(line.steps_lost));
    this.progress.hidden = !total;
    this.progress.value = total ? line.step / total : 0;
    const last = this.view.decisions.at(-1);
    const why = is_over ? line.reason : last ? `${last.reason}${last.would_change ? `; changes with ${last.would_change}` : ""}` : "";
    text(this.why, why || "\u00a0");
    const asked = line.checkpoint_asked ? [`a checkpoint of step ${line.checkpoint_asked.step} or later was asked for`] : [];
    const failing = line.checkpoint_failure ? [`no checkpoint: ${line.checkpoint_failure.reason}`] : [];
    this.doubts.replaceChildren(...[...failing, ...asked, ...line.doubts, ...line.warnings].map((said) => el("div", {class: "warn"}, said)));
    if (this.running) {
      this.running.hidden = is_over || ["stopping", "replayed"].includes(line.state);
      this.ended.hidden = !(this.canResume && line.is_resumable);
      if (document.activeElement !== this.target && this.shownTarget !== line.target_replicas) this.target.value = this.shownTarget = line.target_replicas ?? 1;
    }
    this.tick();
  }

  // What grows by itself between two views.
  tick() {
    if (!this.view) return;
    const {headline: line, now} = this.view, over = this.view.ended, at = over ?? (data ? now : Date.now() / 1000 - this.ahead);
    const kept = line.checkpoint;
    text(this.facts.checkpoint, kept ? `step ${kept.committed}, ${over ? clock(kept.at) : `${duration(Math.max(0, at - kept.at))} ago`}` : "none");
    const idle = line.committed_at == null ? null : Math.max(0, at - line.committed_at);
    text(this.facts.idle, idle == null ? "\u2013" : over ? clock(line.committed_at) : `${duration(idle)} ago`);
    const stalls = !over && idle > Math.max(5, 5 * (line.median_step_s ?? 0));
    this.facts.idle.className = stalls ? "bad" : "";
  }

  drawTables(view) {
    const older = (name) => view.left_out[name] ? [["", `${counted(view.left_out[name], "earlier one")}: look closer`]] : [];
    this.resizes.fill(view.resizes.map((one) => [clock(one.at), one.step,
      el("button", {type: "button", class: "text", onclick: () => this.showResize(one)}, `${one.replicas.join(", ")} ${one.kind}: ${one.reason}`), pause(one.pause_s)]).reverse());
    this.events.fill([...view.events.map((one) => [clock(one.at),
      el("button", {type: "button", class: "text", onclick: () => this.showRecord(one)}, one.text)]).reverse(), ...older("events")]);
    this.pauses.fill(view.pauses.map((one) => [one.cause, one.number, pause(one.pause_s), pause(one.longest_s), one.steps_lost]));
    this.kept.fill(view.checkpoints.map((one) => [clock(one.at), one.checkpoint ?? el("span", {class: "bad"}, `failed: ${one.reason}`), one.committed ?? "",
      one.seconds == null ? "" : duration(one.seconds)]).reverse());
    this.decisions.fill(view.decisions.map((one) => [clock(one.at), one.target_replicas ?? "", one.reason]).reverse());
    const alive = view.lanes.filter((lane) => !lane.how);
    this.devices.fill((alive.length ? alive : view.lanes).map((lane) => [
      el("button", {type: "button", class: "text", onclick: () => this.showReplica(lane)}, lane.replica), lane.how ? ended(lane) : lane.spans.at(-1)[0], lane.node, lane.device,
      lane.spans.length ? duration((lane.spans.at(-1)[2] ?? view.now) - lane.spans[0][1]) : ""]));
  }

  showReplica(lane) {
    const rows = lane.spans.map(([state, from, to]) => [clock(from), state, duration((to ?? this.view.now) - from)]);
    const spans = table([["Since", "t"], ["What", ""], ["For", "n"]], "", `What ${lane.replica} did`);
    spans.fill(rows);
    const act = (label, verb, lines, kind) => el("button", {type: "button", class: kind, onclick: () => {
      box.close();
      this.act(`${label} ${lane.replica}?`, lines, label, `replicas/${encodeURIComponent(lane.replica)}/${verb}`, verb === "kill" ? undefined : {}, true);
    }}, label);
    const verbs = lane.how || data ? [] : [act("Drain", "drain", ["It leaves at a step boundary, within 30 s; the target falls by one."]),
      act("Kill", "kill", ["It dies at once, as by a fault; another one takes its place under a new name."], "danger")];
    const log = el("button", {type: "button", onclick: () => { box.close(); this.logs.choose(lane.replica); }}, "Its output");
    const box = dialog(`${lane.replica}${lane.how ? `: ${ended(lane)}` : ""}`, [el("p", {class: "quiet"}, [lane.node, lane.device].filter(Boolean).join(", ")), spans.shown],
      [...verbs, log, el("button", {type: "button", class: "main", onclick: () => box.close()}, "Close")]);
  }

  showResize(one) {
    const cost = [`pause ${pause(one.pause_s)}`, one.ready_s == null ? null : `ready after ${duration(one.ready_s)}`, one.steps_lost ? `${counted(one.steps_lost, "step")} lost` : "no step lost"];
    const around = this.view.events.filter((event) => Math.abs(event.at - one.at) < 30 && (!event.replica || one.replicas.includes(event.replica)));
    tell(`${one.kind} of ${one.replicas.join(", ")}`, `${clock(one.at, true)}, at step ${one.step}, generation ${one.generation}, now ${counted(one.num_replicas, "replica")}`,
      one.reason, cost.filter(Boolean).join(", "), el("pre", {}, around.map((event) => `${clock(event.at)}  ${event.text}`).join("\n")));
  }

  async showRecord(event) {
    let records = [];
    try {
      records = (await ask(data ? `${this.base}events@${event.position}` : `${this.base}events?after=${event.position}&most=12`)).records;
    } catch (error) {
      records = [error.message];
    }
    const [first, ...rest] = records;
    const later = rest.map((one) => `${clock(one.at)}  ${one.kind}  ${["replica", "step", "generation", "reason"].filter((name) => one[name] != null).map((name) => `${name} ${one[name]}`).join("  ")}`);
    tell(event.text, el("pre", {}, JSON.stringify(first, null, 1)), el("p", {class: "quiet"}, later.length ? "and then" : ""), el("pre", {}, later.join("\n")));
  }

  async prove() {
    this.proved.replaceChildren(el("p", {class: "quiet"}, "Counting\u2026"));
    try {
      const found = await ask(`${this.base}audit`), good = found.samples_exactly_once;
      const said = good ? "every sample counted exactly once" : found.problems.length ? `${counted(found.problems.length, "problem")} found` : "not proved: not all was recorded here";
      this.proved.replaceChildren(el("p", {class: good ? "good" : "bad"}, said),
        el("p", {}, `${counted(found.committed_steps, "committed step")}, ${counted(found.committed_samples, "sample")}, ${found.duplicates} equal repeats, ${found.uncommitted} micro-batch${found.uncommitted === 1 ? "" : "es"} computed but not committed`),
        ...[...found.problems, ...found.uncovered].slice(0, 20).map((one) => el("p", {class: "warn"}, one)));
    } catch (error) {
      this.proved.replaceChildren(el("p", {class: "bad"}, error.message));
    }
  }

  async act(title, lines, verb, path, body, isDangerous = false, method = "POST") {
    await act(`${this.base}${path}`, title, lines, verb, body, isDangerous, method);
    this.updateSoon();
  }

  scale() {
    const target = Number(this.target.value), {target_replicas: before, size} = this.view.headline;
    const divides = this.view.headline.num_slots ? [`A step has ${this.view.headline.num_slots} micro-batches to share.`] : [];
    this.act(`Scale to ${counted(target, "replica")}?`, [`${counted(size, "replica")} train now, ${before ?? "none"} wanted.`, ...divides], "Scale", "scale", {target});
  }

  save() { this.act("Save a checkpoint now?", ["Of the next step boundary; the job trains on meanwhile."], "Save", "checkpoint", {}); }

  suspend() { this.act("Suspend the job?", ["It stops at the next step boundary, with a checkpoint to go on from."], "Suspend", "suspend", {}); }

  stop() { this.act("Stop the job?", ["It ends at the next step boundary. What was not saved is gone."], "Stop", "stop", {}, true); }

  async policy() {
    let shown;
    try {
      shown = JSON.stringify(await ask(`${this.base}policy`), null, 2);
    } catch (error) {
      return tell("Policy", error.message);
    }
    const area = el("textarea", {"aria-label": "Elastic policy, as JSON", spellcheck: "false"});
    area.value = shown;
    const change = async () => {
      let wanted;
      try {
        wanted = JSON.parse(area.value);
      } catch (error) {
        return tell("Policy", `that is no JSON: ${error.message}`);
      }
      const before = JSON.parse(shown);
      const changed = Object.fromEntries(Object.entries(wanted).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));
      box.close();
      if (Object.keys(changed).length) this.act("Change the policy?", Object.entries(changed).map(([name, value]) => `${name}: ${JSON.stringify(value)}`), "Change", "policy", changed, false, "PATCH");
    };
    const box = dialog("Elastic policy", [area], [el("button", {type: "button", onclick: () => box.close()}, "Cancel"), el("button", {type: "button", class: "main", onclick: change}, "Change\u2026")]);
  }
}
