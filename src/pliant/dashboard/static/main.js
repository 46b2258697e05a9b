// Chooses what to show by the server's kind, logs in, and keeps the theme.

import {ask, logIn, mode} from "./api.js";
import {el, text} from "./dom.js";
import {JobPage} from "./job.js";
import {PoolPage} from "./pool.js";
import {RunsPage} from "./runs.js";

const main = document.getElementById("main"), link = document.getElementById("link");
let page = null;

function linked(isThere, why = "", status = 200) {
  link.className = isThere ? "" : "off";
  text(link, mode === "file" ? "a report of a run" : isThere ? "live" : "not connected");
  if (status === 401) return locked(why);
  link.title = why;
}

function locked(why) {
  page?.close();
  page = null;
  text(link, "not logged in");
  main.replaceChildren(el("section", {class: "card"}, el("h2", {}, "Not logged in"), el("p", {}, why || "The session has ended."),
    el("p", {}, "A link that lets one browser in, once, is printed by:"), el("pre", {}, "pliant dashboard")));
}

async function show() {
  try { await logIn(); } catch (error) { return locked(error.message); }
  page?.close();
  main.replaceChildren();
  document.getElementById("state").textContent = "";
  const [, kind, name] = /^#(run|pool)=([^&]+)$/.exec(location.hash) ?? [];
  if (kind === "pool") page = new PoolPage(`v1/pools/${name}/v1/`, {linked});
  else if (mode === "runs" && !kind) page = new RunsPage({linked});
  else if (mode === "pool") page = new PoolPage("v1/", {linked});
  else page = new JobPage(kind ? `v1/runs/${name}/v1/` : "v1/", {linked, canResume: mode === "runs"});
  main.append(...page.shown.filter(Boolean));
  await page.start();
}

function initialTheme() {
  const kept = localStorage.getItem("pliant-theme");
  if (kept) document.documentElement.dataset.theme = kept;
}

document.getElementById("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("pliant-theme", document.documentElement.dataset.theme); } catch { /* a report in a file keeps none */ }
  page?.repaint?.();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.repaint?.());
window.addEventListener("hashchange", show);
try { initialTheme(); } catch { /* the same */ }
show();
