"""How long the page takes to open a long run, and to show what has come since.

    python -m benchmarks.view                     100,000 steps, 1,000 resizes
    python -m benchmarks.view --steps 1000000 --resizes 5000

Makes the log of such a run, reads it as ``pliant dashboard`` does, and opens the page in Chromium.
``open_s`` is from the click on a run to its curves, ``link_s`` from opening the link of one run,
which the server begins to read when it prints the link.  ``busy`` is the longest time for which the
page answered nobody, while new steps came in.  Others may compute meanwhile, so the seconds of the
processor are told, too: of the server, and of the page's own thread.  ``running``: a run that goes
on has no snapshot yet, and all of its log is taken in.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.dashboard.browser import Page, browser, served

from pliant.dashboard.app import Runs, create_app, key_of
from pliant.http.login import Logins
from pliant.machine.registry import StateDirectory
from pliant.observe.history import read_history, snapshot_of, write_snapshot
from pliant.observe.view import LogView

TIMES = 5
PERSON_S = 4.0

BUSY = """() => {
  window.busy = 0;
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    window.busy = Math.max(window.busy, now - last - 20);
    last = now;
  }, 20);
}"""


def records(steps: int, resizes: int) -> Iterator[dict[str, Any]]:
    """Yield the log of a run of two to nine replicas, one of which joins or dies now and then."""
    at, generation, names, draw = 1_790_000_000.0, 0, ["r1", "r2"], random.Random(1)
    yield {"kind": "job_started", "start_replicas": 2, "min_replicas": 1, "max_replicas": 9}
    yield {"kind": "node_joined", "node": "a", "devices": 9}
    yield {"kind": "plan", "total_steps": steps, "num_slots": 16}
    for name in names:
        yield {"kind": "start_replica", "replica": name, "node": "a"}
    every, count = max(steps // max(resizes, 1), 1), 2
    for step in range(steps):
        if step % every == 0:
            generation += 1
            if len(names) < 9 and (len(names) < 3 or draw.random() < 0.5):
                count += 1
                names = [*names, f"r{count}"]
                yield {"kind": "start_replica", "replica": names[-1], "node": "a", "at": at}
                yield {"kind": "spare", "replica": names[-1], "at": at}
                yield {"kind": "prepare", "order": order(generation, names), "at": at}
                yield {"kind": "switch", "order": order(generation, names), "at": at}
            else:
                lost, *names = names
                yield {"kind": "exited", "replica": lost, "exited_kind": "signal", "at": at}
                yield {"kind": "reform", "order": order(generation, names), "at": at}
            for name in names:
                where = {"replica": name, "generation": generation, "step": step}
                yield {"kind": "switched", "at": at, **where}
        at += draw.uniform(0.9, 1.1)
        loss = 3.0 / (1 + step / 1000)
        yield {
            "kind": "commit", "at": at, "step": step, "generation": generation, "loss": loss,
            "grad_norm": 1.2345678, "samples": 16, "step_s": 1.0, "by": names[0],
        }  # fmt: skip


def order(generation: int, names: list[str]) -> dict[str, Any]:
    """Return what an order says of its members."""
    return {"generation": generation, "members": [{"replica": name} for name in names]}


def write_log(path: Path, steps: int, resizes: int) -> None:
    """Write such a log, every record with its moment."""
    at = 1_790_000_000.0
    with path.open("w") as file:
        for record in records(steps, resizes):
            at = record.get("at", at)
            line = {
                "v": 1,
                "at": at,
                "mono": at - 1.79e9,
                "job": "long",
                "incarnation": 1,
                **record,
            }
            file.write(json.dumps(line) + "\n")


def timed(act: Any) -> float:
    """Return how long something takes, in seconds."""
    began_s = time.perf_counter()
    act()
    return time.perf_counter() - began_s


def in_browser(out: Path) -> dict[str, float]:
    """Open the page of a run; return {open_s, server_cpu_s, page_cpu_s, busy_ms}."""
    log, logins = out / "events.jsonl", Logins()
    state = StateDirectory(out.parent / "state")
    app = create_app(Runs(state, [out]), logins)
    with browser() as started, served(app) as port:
        page = Page(started)
        page.open(f"http://127.0.0.1:{port}/#code={logins.new_code()}")
        link = page.page.get_by_role("link", name="long")
        link.wait_for()

        devtools = page.context.new_cdp_session(page.page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

        def page_cpu_s() -> float:
            metrics = devtools.send("Performance.getMetrics")["metrics"]
            return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

        def open_run() -> None:
            link.click()
            page.page.locator(".u-over").nth(2).wait_for()

        before_s, server_s = page_cpu_s(), time.process_time()
        found = {"open_s": timed(open_run), "server_cpu_s": time.process_time() - server_s}
        found["page_cpu_s"] = page_cpu_s() - before_s
        page.page.evaluate(BUSY)
        last = json.loads(log.read_bytes().splitlines()[-1])
        for number in range(1, 6):
            with log.open("a") as file:
                new = {"step": last["step"] + number, "at": last["at"] + number}
                file.write(json.dumps({**last, **new, "mono": last["mono"] + number}) + "\n")
            page.page.wait_for_timeout(1200)
        return {**found, "busy_ms": float(page.page.evaluate("window.busy"))}


def by_link(out: Path) -> float:
    """Return what opening the link of ``pliant dashboard RUN`` takes, up to the curves, in seconds.

    It is opened some seconds after it is printed, as by a person; the server reads meanwhile.
    """
    logins, runs = Logins(), Runs(StateDirectory(out.parent / "state"), [out])
    runs.read(out)
    with browser() as started, served(create_app(runs, logins)) as port:
        page = Page(started)
        time.sleep(PERSON_S)

        def open_link() -> None:
            page.open(f"http://127.0.0.1:{port}/#code={logins.new_code()}&run={key_of(out)}")
            page.page.locator(".u-over").nth(2).wait_for()

        return timed(open_link)


def main() -> None:
    """Print the figures as one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--resizes", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "long"
        out.mkdir()
        log = out / "events.jsonl"
        write_log(log, given.steps, given.resizes)
        began_s = time.process_time()
        LogView(log).as_json()
        running_cpu_s = time.process_time() - began_s
        history = read_history(log)  # as a coordinator leaves it at the end of a job
        write_snapshot(snapshot_of(history, log), log)
        began_s = time.process_time()
        first = [timed(LogView(log).as_json) for _ in range(TIMES)]
        cpu_s = (time.process_time() - began_s) / TIMES
        view = LogView(log)
        found: dict[str, Any] = {"steps": given.steps, "resizes": given.resizes}
        found |= {"log_mb": log.stat().st_size / 1e6, "view_kb": len(view.as_json()) / 1e3}
        found |= {"first_s": statistics.median(first), "first_cpu_s": cpu_s}
        found["running_cpu_s"] = running_cpu_s
        found |= {"again_ms": 1e3 * statistics.median(timed(view.as_json) for _ in range(TIMES))}
        print(json.dumps({**found, "link_s": by_link(out), **in_browser(out)}))


if __name__ == "__main__":
    main()
