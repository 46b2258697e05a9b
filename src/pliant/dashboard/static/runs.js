// All runs and pools of a user: how each stands, and the way to its page.

import {ask, every} from "./api.js";
import {card, clock, duration, el, table, text} from "./dom.js";

const LIST_AGAIN_MS = 3000;

export class RunsPage {
  constructor({linked}) {
    this.linked = linked;
    this.runs = table([["Job", ""], ["State", ""], ["Steps", "n"], ["Replicas", "n"], ["Began", "t"], ["For", "n"], ["How it ended", "w"]], "no run is known here; start one with pliant run", "Runs");
    this.pools = el("p", {class: "row"});
    this.shown = [card("Runs", this.runs.shown), card("Pools", this.pools)];
    this.runs.shown.classList.remove("scroll");
    this.runs.shown.classList.add("wide");
    text(document.getElementById("title"), "All runs");
    document.title = "pliant";
  }

  async start() { await this.update(); this.close = every(LIST_AGAIN_MS, () => this.update()); }

  close() {}

  async update() {
    try {
      const {runs, pools, now} = await ask("v1/runs");
      this.runs.fill(runs.map((run) => [run.key ? el("a", {href: `#run=${run.key}`}, run.job) : run.job, el("span", {class: `state ${run.state}`}, run.state),
        `${run.step}${run.total_steps == null ? "" : ` of ${run.total_steps}`}`, run.num_replicas, clock(run.began_at, true), duration((run.ended_at ?? now) - run.began_at), run.reason ?? ""]));
      this.pools.replaceChildren(...(pools.length ? pools.map((name) => el("a", {href: `#pool=${encodeURIComponent(name)}`}, name)) : ["none runs here"]));
      this.linked(true);
    } catch (error) {
      this.linked(false, error.message, error.status);
    }
  }
}
