// Curves over time, all with the same axis, and lanes with one row for each replica.

import {clock, duration, el, short} from "./dom.js";

/* global uPlot */
const SIDE = 52;
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const stepped = (...args) => uPlot.paths.stepped({align: 1})(...args);

// Adds to each curve those before it.
const stack = ([at, ...columns]) => columns.reduce((sums, column) => [...sums,
  column.map((value, index) => value == null ? null : value + (sums.length > 1 ? sums.at(-1)[index] : 0))], [at]);

// series: [{label, colour, scale, stepped, dash, fill, unit}]
export class Chart {
  // stacked: each curve begins where the one before it ends, and what is between is filled.
  constructor(series, {low = false, label, onZoom, floor = null, stacked = false}) {
    this.series = series;
    this.onZoom = onZoom;
    this.floor = floor;
    this.stacked = stacked;
    this.values = series.map(() => el("b"));
    this.legend = el("div", {class: stacked ? "legend deep" : "legend"}, series.map((one, at) => {
      const swatch = el("i", {class: "line"});
      one.swatch = swatch;
      return el("span", {}, swatch, `${one.label} `, this.values[at]);
    }));
    this.place = el("div", {class: low ? "chart low" : "chart", role: "img", "aria-label": label});
    this.shown = el("div", {}, this.legend, this.place);
    this.data = [[], ...series.map(() => [])];
    this.breaks = [];
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
  }

  size() { return {width: this.place.clientWidth || 300, height: this.place.clientHeight || 150}; }

  // breaks: [from, to] of times in which no curve is drawn, as nobody trained.
  draw(data, range, breaks = []) {
    this.data = data;
    this.drawn = this.stacked ? stack(data) : data;
    this.range = range;
    this.breaks = breaks;
    if (!this.plot) this.make();
    this.plot.setData(this.drawn, false);
    this.plot.batch(() => {
      this.plot.setScale("x", {min: range[0], max: range[1]});
      for (const scale of new Set(this.series.map((one) => one.scale ?? "y"))) this.plot.setScale(scale, this.bounds(scale));
    });
    this.tell(null);
  }

  bounds(scale) {
    const all = this.series.flatMap((one, at) => (one.scale ?? "y") === scale ? this.drawn[at + 1] : []).filter((value) => value != null);
    if (!all.length) return {min: 0, max: 1};
    let low = Infinity, high = -Infinity;
    for (const value of all) { low = Math.min(low, value); high = Math.max(high, value); }
    if (this.floor != null || scale !== "right") low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return {min: low === 0 ? 0 : low - room, max: high + room};
  }

  make() {
    const grid = {stroke: colour("grid"), width: 1}, hasRight = this.series.some((one) => one.scale === "right");
    const axis = {stroke: colour("quiet"), grid, ticks: {show: false}, font: "11px system-ui, sans-serif"};
    const amount = (plot, values) => values.map((value) => Math.abs(value) >= 10000 ? `${short(value / 1000, 3)}k` : short(value, 3));
    this.series.forEach((one) => { one.swatch.style.background = colour(one.colour); });
    this.place.replaceChildren();
    this.plot = new uPlot({
      ...this.size(), legend: {show: false}, padding: [6, hasRight ? 0 : SIDE, 0, 0],
      cursor: {sync: {key: "time"}, drag: {x: true, y: false, setScale: false}, points: {size: 5}},
      scales: {x: {time: true, auto: false}, y: {auto: false}, right: {auto: false}},
      axes: [{...axis, size: 26, space: 64, values: (plot, times) => this.times(times)}, {...axis, size: SIDE, space: 26, values: amount},
        ...(hasRight ? [{...axis, scale: "right", side: 1, size: SIDE, space: 26, grid: {show: false}, values: amount}] : [])],
      series: [{}, ...this.series.map((one) => ({
        label: one.label, scale: one.scale ?? "y", stroke: colour(one.colour), width: one.width ?? 1.5, dash: one.dash,
        fill: this.stacked ? `${colour(one.colour)}99` : one.fill ? `${colour(one.colour)}33` : undefined, paths: one.stepped ? stepped : undefined,
        points: {show: this.data[0].length < 3}, spanGaps: false, gaps: (plot) => this.gaps(plot)}))],
      bands: this.stacked ? this.series.slice(1).map((one, at) => ({series: [at + 2, at + 1]})) : undefined,
      hooks: {
        setCursor: [(plot) => this.tell(plot.cursor.idx)],
        setSelect: [(plot) => {
          if (plot.select.width > 5) this.onZoom([plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")]);
          plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
        }]},
    }, this.drawn, this.place);
    this.plot.over.addEventListener("dblclick", () => this.onZoom(null));
  }

  gaps(plot) {
    const low = plot.scales.x.min, high = plot.scales.x.max;
    const before = (at) => this.data[0].findLast((one) => one <= at) ?? at, after = (at) => this.data[0].find((one) => one >= at) ?? at;
    return this.breaks.map(([from, to]) => [before(from), after(to)]).filter(([from, to]) => to > low && from < high)
      .map((ends) => ends.map((at) => Math.round(plot.valToPos(Math.min(Math.max(at, low), high), "x", true))));
  }

  times(times) {
    const long = this.range && this.range[1] - this.range[0] > 86400;
    return times.map((at) => long ? clock(at, true).slice(5, 16) : this.range[1] - this.range[0] > 600 ? clock(at).slice(0, 5) : clock(at));
  }

  // The newest values, or those below the pointer.
  tell(at) {
    this.series.forEach((one, index) => {
      const values = this.data[index + 1], value = at == null ? values.findLast((each) => each != null) : values[at];
      this.values[index].textContent = value == null ? "" : one.unit === "s" ? duration(value) : short(value);
    });
  }

  repaint() { this.plot?.destroy(); this.plot = null; if (this.range) this.draw(this.data, this.range, this.breaks); }
}

const ROW = 18;
export const HARMLESS = ["left", "finished", "ended"];
export const STATES = ["starting", "spare", "joining", "training", "waiting", "leaving", "finished", "lost"];

export class Lanes {
  // paint: the class of what a row does; without it these are states of replicas.
  constructor({onReplica, onMark, paint = null, label = "What each replica did when"}) {
    this.paint = paint ?? ((state) => `s-${state}`);
    this.onReplica = onReplica;
    this.onMark = onMark;
    this.place = el("div", {class: "lanes", tabindex: 0, role: "region", "aria-label": label});
    this.legend = el("div", {class: "legend"}, paint ? [] : STATES.map((state) => el("span", {}, el("i", {class: `s-${state}`}), state)));
    this.shown = el("div", {}, this.legend, this.place);
    new ResizeObserver(() => { if (this.view && this.place.clientWidth !== this.width) this.draw(this.view, this.range); }).observe(this.place);
  }

  draw(view, range) {
    this.view = view;
    this.range = range;
    this.width = this.place.clientWidth || 300;
    const [from, to] = range, wide = Math.max(1, this.width - 2 * SIDE);
    const x = (at) => SIDE + wide * Math.min(1, Math.max(0, (at - from) / (to - from || 1)));
    const rows = new Map(view.lanes.map((lane, at) => [lane.replica, at]));
    const drawn = view.lanes.map((lane, row) => {
      const top = row * ROW, lost = lane.how && !HARMLESS.includes(lane.how);
      const name = el("svg:text", {x: SIDE - 6, y: top + 13, "text-anchor": "end", onclick: () => this.onReplica(lane)}, lane.replica);
      const spans = lane.spans.filter(([, a, b]) => a <= to && (b ?? to) >= from).map(([state, a, b]) => {
        const left = x(a), right = x(b ?? to);
        return el("svg:rect", {class: this.paint(state), x: left, y: top + 3, width: Math.max(right - left, 1), height: ROW - 6, rx: 2},
          el("svg:title", {}, `${lane.replica} ${state} from ${clock(a)}${b ? ` for ${duration(b - a)}` : ""}${lane.node ? ` on ${lane.node}` : ""}`));
      });
      const end = lane.spans.at(-1)?.[2];
      const cross = lost && end >= from && end <= to ? [el("svg:path", {class: "mark m-loss", onclick: () => this.onReplica(lane),
        d: `M${x(end) - 4} ${top + 5}l8 8m0-8l-8 8`, "stroke-width": 3}, el("svg:title", {}, `${lane.replica} lost at ${clock(end)}`))] : [];
      cross.forEach((mark) => { mark.style.stroke = colour("c-lost"); });
      return el("svg:g", {}, name, spans, cross);
    });
    const marks = view.resizes.flatMap((resize) => resize.replicas.filter((name) => rows.has(name)).map((name) => {
      const row = rows.get(name), at = x(resize.at);
      return el("svg:circle", {class: `mark m-${resize.kind}`, cx: at, cy: row * ROW + ROW / 2, r: 4.5, onclick: () => this.onMark(resize)},
        el("svg:title", {}, `${resize.kind} of ${resize.replicas.join(", ")}: ${resize.reason}`));
    }));
    const high = Math.max(ROW, view.lanes.length * ROW);
    const label = `${view.lanes.length} rows; the tables below say the same in words`;
    const isAtEnd = this.place.scrollTop + this.place.clientHeight >= this.place.scrollHeight - ROW;
    this.place.className = view.lanes.length > 9 ? "lanes many" : "lanes";
    this.place.replaceChildren(el("svg:svg", {height: high, viewBox: `0 0 ${this.width} ${high}`, role: "img", "aria-label": label}, drawn, marks));
    if (isAtEnd) this.place.scrollTop = high;
  }
}
