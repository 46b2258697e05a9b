// What workers printed: the end of it, and the lines that hold a word.

import {ask, data} from "./api.js";
import {counted, el, text} from "./dom.js";

const MOST_PIECES = 64, MOST_LINES = 500;

export class LogPanel {
  constructor(base) {
    this.base = base;
    this.worker = el("select", {"aria-label": "Whose output", onchange: () => this.read(true)});
    this.word = el("input", {type: "search", placeholder: "lines with \u2026", "aria-label": "Only lines with", oninput: () => this.draw()});
    this.lines = el("pre");
    this.said = el("span", {class: "quiet"}, "");
    const again = el("button", {type: "button", onclick: () => this.read()}, "Read on");
    this.place = el("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Output"}, this.lines);
    this.shown = el("div", {}, el("div", {class: "row"}, this.worker, this.word, again, this.said), this.place);
    this.all = [];
  }

  // Reads nothing until the panel is seen: a log may be long.
  start() {
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) { this.seen.disconnect(); this.names(); }
    });
    this.seen.observe(this.shown);
  }

  close() { this.seen?.disconnect(); }

  async names(chosen) {
    try {
      const {workers} = await ask(`${this.base}logs`);
      this.worker.replaceChildren(...workers.map((name) => el("option", {value: name}, name)));
      const wanted = workers.find((name) => name === chosen || name.split(".")[0] === chosen);
      if (wanted) this.worker.value = wanted;
      if (chosen && !wanted) return text(this.said, `${chosen} has printed nothing here`);
      await (workers.length ? this.read(true) : text(this.said, "no replica has printed anything yet"));
    } catch (error) {
      text(this.said, error.message);
    }
  }

  async choose(replica) {
    this.seen?.disconnect();
    this.shown.scrollIntoView({block: "center"});
    await this.names(replica);
    this.worker.focus();
  }

  async read(isNew = false) {
    if (isNew) { this.all = []; this.next = ""; this.rest = ""; this.decoder = new TextDecoder(); }
    const worker = this.worker.value;
    try {
      for (let pieces = 0; pieces < MOST_PIECES && worker === this.worker.value; pieces++) {
        const piece = data ? (await ask(`${this.base}logs/${worker}`)).text : await this.piece(worker);
        if (!piece) break;
        const lines = (this.rest + piece).split("\n");
        this.rest = data ? "" : lines.pop();
        this.all.push(...lines);
        if (data) break;
      }
      this.draw();
    } catch (error) {
      text(this.said, error.message);
    }
  }

  async piece(worker) {
    const {bytes, next} = await ask(`${this.base}logs/${encodeURIComponent(worker)}?after=${encodeURIComponent(this.next)}`, {as: "bytes"});
    this.next = next;
    return this.decoder.decode(bytes, {stream: true});
  }

  draw() {
    const word = this.word.value.toLowerCase(), all = this.rest ? [...this.all, this.rest] : this.all;
    const found = word ? all.filter((line) => line.toLowerCase().includes(word)) : all;
    this.lines.textContent = found.slice(-MOST_LINES).join("\n");
    text(this.said, `${found.length > MOST_LINES ? `the last ${MOST_LINES} of ` : ""}${counted(found.length, "line")}${word ? ` of ${all.length}` : ""}`);
    this.place.scrollTop = this.place.scrollHeight;
  }
}
