"""The page in a real browser: each element against the log, a live resize, who is not let in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dashboard.browser import Page, browser, served
from tests.observe.test_run_index import gone
from tests.observe.test_runs import begun
from tests.observe.test_view import RECORDED
from tests.pool.box import box
from tests.processes.launching import FAKE_WORKER, running

from pliant.dashboard.app import Runs, create_app, create_day_app, key_of
from pliant.dashboard.report import report_of
from pliant.http.client import Caller
from pliant.http.login import Logins
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe.log import Record
from pliant.observe.prose import line
from pliant.observe.reading import read
from pliant.observe.status import board_of
from pliant.run.pool_day import PoolDay

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SCREENSHOT = Path(__file__).parents[2] / "docs" / "howto" / "watch-a-run.png"
OF_POOL = SCREENSHOT.with_name("watch-a-pool.png")
MIDNIGHT = 1_789_948_800.0
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as found:
        yield found


class World:
    """The page of a user who has one run, which ended."""

    def __init__(self, directory: Path, log: bytes = RECORDED.read_bytes()) -> None:
        self.state = state = StateDirectory(directory / "state", directory / "shared")
        self.out = begun(state, "gpt", gone()).out
        (self.out / "events.jsonl").write_bytes(log)
        (self.out / "logs").mkdir()
        (self.out / "logs" / "r1.log").write_text(f"first line\nloss nan\n{HOSTILE}\n")
        self.logins = Logins()
        self.app = create_app(Runs(state), self.logins)
        self.run = key_of(self.out)

    def link(self, port: int, *, is_of_run: bool = True) -> str:
        run = f"&run={self.run}" if is_of_run else ""
        return f"http://127.0.0.1:{port}/#code={self.logins.new_code()}{run}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def clock(record: Record) -> str:
    return time.strftime("%H:%M:%S", time.localtime(record["at"]))


def test_each_element_is_what_the_log_says(started: Any, world: World) -> None:
    records = read(world.out / "events.jsonl")
    board = board_of(records)
    with served(world.app) as port:
        page = Page(started)
        page.open(world.link(port, is_of_run=False))
        page.page.get_by_role("link", name="gpt").click()
        page.wait_for("91 of 3000")

        assert page.text("#state") == board.state
        assert page.fact("Loss") == f"{board.loss:.4g}"
        assert page.fact("Replicas") == "none (1\u20134)"
        assert page.fact("Checkpoint").startswith("step 91, ")
        assert page.fact("Steps lost") == "0"
        assert page.text(".why") == board.reason
        told = [[clock(one), said] for one in records if (said := line(one)) is not None]
        assert page.rows("What happened") == told[::-1]
        resizes = [row[1:] for row in page.rows("Resizes")][::-1]
        assert resizes == [
            [str(one.step), f"{', '.join(one.replicas)} {one.kind.value}: {one.reason}",
             f"{one.pause_s:.3f} s"]
            for one in board.resizes()
        ]  # fmt: skip
        assert [row[:2] for row in page.rows("Pauses by cause")] == [["join", "2"], ["loss", "1"]]
        assert page.rows("Checkpoints")[0][1:3] == ["step-00000091-l1", "91"]
        states = [row[:2] for row in page.rows("Replicas and their devices")]
        assert states[:2] == [["r1", "finished"], ["r2", "lost (signal)"]]
        assert page.page.locator(".lanes svg text").all_text_contents() == ["r1", "r2", "r3", "r4"]
        assert page.page.locator(".lanes circle.m-loss").count() == 1
        assert page.complaints == []


def test_a_click_opens_the_record_by_the_keyboard_too(started: Any, world: World) -> None:
    with served(world.app) as port:
        page = Page(started)
        page.open(world.link(port))
        event = page.page.get_by_role("button", name="asked to kill r2")
        event.focus()
        page.page.keyboard.press("Enter")
        page.wait_for('"kind": "kill_requested"', "dialog")
        page.page.keyboard.press("Escape")
        page.page.locator("dialog").wait_for(state="detached")

        assert page.complaints == []


def test_a_run_that_has_ended_is_seen_as_it_was(started: Any, world: World) -> None:
    records = read(world.out / "events.jsonl")
    moment = next(one["at"] for one in records if one["kind"] == "exited") + 0.1
    first, last = records[0]["at"], records[-1]["at"]
    with served(world.app) as port:
        page = Page(started)
        page.open(world.link(port))
        page.wait_for("91 of 3000")
        slider = page.page.get_by_role("slider")
        slider.fill(str(round(1000 * (moment - first) / (last - first))))
        page.wait_for("replayed")
        step = int(page.fact("Step").split()[0])
        commits = [one for one in records if one["kind"] == "commit" and one["at"] <= moment]

        assert abs(step - len(commits)) <= 1
        assert page.fact("Replicas") == "2 of 3 wanted (1\u20134)"
        assert page.fact("Checkpoint") == "none"
        assert page.page.locator(".lanes svg text").all_text_contents() == ["r1", "r2", "r3", "r4"]
        states = dict(row[:2] for row in page.rows("Replicas and their devices"))
        assert states == {"r1": "training", "r3": "training", "r4": "starting"}
        page.page.keyboard.press("End")
        slider.fill("1000")
        page.wait_for("suspended")
    assert page.complaints == []


def test_what_a_script_prints_stays_text(started: Any, tmp_path: Path) -> None:
    renamed = RECORDED.read_text().replace('"job": "gpt"', f'"job": {json.dumps(HOSTILE)}')
    world = World(tmp_path, renamed.replace("node-1", "<b>node</b>").encode())
    with served(world.app) as port:
        page = Page(started)
        page.open(world.link(port))
        page.wait_for("91 of 3000")
        page.page.get_by_role("region", name="Output").scroll_into_view_if_needed()
        page.wait_for("first line", "pre")
        page.page.get_by_role("searchbox").fill("IMG")
        page.wait_for("1 line of 3")

        assert page.text("h1") == HOSTILE
        assert page.page.get_by_role("region", name="Output").inner_text() == HOSTILE
        assert page.page.locator("main b:text('node')").count() == 0
        assert page.page.evaluate("window.hacked") is None
        assert page.complaints == []


@pytest.mark.slow
def test_a_link_is_good_once_and_without_one_nothing_is_shown(started: Any, world: World) -> None:
    with served(world.app) as port:
        link, first, second = world.link(port), Page(started), Page(started)
        first.open(link)
        first.wait_for("91 of 3000")
        second.open(link)
        second.wait_for("Not logged in")
        third = Page(started)
        third.open(f"http://127.0.0.1:{port}/")
        third.wait_for("pliant dashboard", "pre")

        assert "code" not in first.page.url
        assert "3000" not in second.text("body") + third.text("body")


@pytest.mark.slow
def test_a_page_whose_server_comes_back_goes_on(started: Any, world: World) -> None:
    log, lines = world.out / "events.jsonl", RECORDED.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:60]))
    page = Page(started)
    with served(world.app) as port:
        page.open(world.link(port))
        page.wait_for("live")
    page.wait_for("not connected")
    log.write_bytes(b"".join(lines))
    with served(world.app, port):
        page.wait_for("live")
        page.wait_for("91 of 3000")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "theme"), [(390, "dark"), (800, "light"), (1280, "light"), (1280, "dark")]
)
def test_everybody_can_read_it_on_every_screen(
    started: Any, world: World, width: int, theme: str, request: pytest.FixtureRequest
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    with served(world.app) as port:
        page = Page(started, width=width, theme=theme)
        page.open(world.link(port))
        page.wait_for("91 of 3000")
        page.page.locator(".u-over").first.wait_for()
        too_wide = page.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        found = axe.Axe().run(page.page)
        page.page.get_by_role("button", name="asked to kill r2").click()
        page.page.locator("dialog pre").first.wait_for()
        in_dialog = axe.Axe().run(page.page)
        page.page.keyboard.press("Escape")
        if request.config.getoption("--rewrite") and (width, theme) == (1280, "light"):
            page.page.set_viewport_size({"width": 1280, "height": 1010})
            page.page.evaluate("window.scrollTo(0, 0)")
            page.page.screenshot(path=str(SCREENSHOT))

    assert found.violations_count == 0, found.generate_report()
    assert in_dialog.violations_count == 0, in_dialog.generate_report()
    assert too_wide == 0


STATUS: dict[str, Any] = {
    "pool": "default", "in_use": 3, "limit": 4, "free": 1, "recovering": [], "failure": None,
    "devices": [
        {"device": number, "name": None, "claim": claim, "note": None, "is_blocked": False,
         "is_cordoned": False, "memory_bytes": 80 << 30}
        for number, claim in enumerate(["ada", "ada", "gpt", None])
    ],
    "claims": [
        {"name": name, "team": "default", "priority": "normal", "state": state, "devices": devices,
         "min": 1, "ask": 3, "since": 1.0, "reason": reason}
        for name, state, devices, reason in (
            ("ada", "running", [0, 1], "has all it can use"), ("gpt", "shrinking", [2], HOSTILE),
            ("bob", "waiting", [], "needs 1 more: 0 idle"),
        )
    ],
    "teams": [{"team": "default", "share": 3, "quota": None, "borrow_limit": None,
               "reclaim_from": "lower_priority"}],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_pool_says_who_has_what_and_who_waits_for_what(
    started: Any, world: World, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    out = world.state.pools / "default"
    out.mkdir(parents=True)
    granted = {"v": 1, "kind": "grant", "at": 2.0, "mono": 2.0, "name": "ada", "devices": [0, 1]}
    (out / "events.jsonl").write_text(json.dumps(granted) + "\n")
    RuntimeFiles.of("pool", "default", world.state.pools).write(
        url="http://127.0.0.1:1", token="secret", out=out
    )
    monkeypatch.setattr(Caller, "ask", lambda self, method, path, body: STATUS)
    with served(world.app) as port:
        page = Page(started, width=width)
        page.open(world.link(port, is_of_run=False))
        page.page.get_by_role("link", name="default").wait_for()
        of_list = axe.Axe().run(page.page)
        page.page.get_by_role("link", name="default").click()
        page.wait_for("3 of 4")
        page.page.locator(".lanes rect").first.wait_for()
        found = axe.Axe().run(page.page)
        too_wide = page.page.evaluate("document.documentElement.scrollWidth - innerWidth")

        assert [row[0] for row in page.rows("Claims")] == ["ada", "gpt", "bob"]
        assert page.rows("Claims")[1][-1] == HOSTILE
        assert page.fact("Claims that wait") == "1"
        assert page.page.locator(".lanes rect").count() == 2
        assert page.rows("Who took what from whom")[0][1].startswith("ada gets devices 0, 1")
    assert page.complaints == []
    assert of_list.violations_count == 0, of_list.generate_report()
    assert found.violations_count == 0, found.generate_report()
    assert too_wide == 0


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (800, "light"), (1280, "light")])
def test_a_day_of_a_pool_is_seen_at_each_moment(
    started: Any, tmp_path: Path, width: int, theme: str, request: pytest.FixtureRequest
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    day, logins = PoolDay(tmp_path / "events.jsonl", MIDNIGHT), Logins()
    with served(create_day_app(day.log, day.status, logins)) as port:
        page = Page(started, width=width, theme=theme)
        page.open(f"http://127.0.0.1:{port}/#code={logins.new_code()}")
        page.wait_for_fact("Claims that wait", "0")
        whole = page.page.locator(".lanes rect").count()
        slider = page.page.get_by_role("slider")
        slider.fill("187")  # of 288: 15:35
        page.wait_for_fact("Claims that wait", "7")
        until = page.page.locator(".lanes rect").count()
        now = day.status(MIDNIGHT + 187 * 300)

        assert [row[0] for row in page.rows("Claims")] == [one["name"] for one in now["claims"]]
        assert [row[-1] for row in page.rows("Claims")] == [one["reason"] for one in now["claims"]]
        assert [row[:2] for row in page.rows("Devices of the pool")] == [
            [one["name"], one["claim"]] for one in now["devices"]
        ]
        assert page.rows("Who took what from whom")[0][1].startswith("notebook-9 gets cuda:9")
        assert until < whole
        found = axe.Axe().run(page.page)
        too_wide = page.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if request.config.getoption("--rewrite") and width == 1280:
            page.page.evaluate("document.activeElement.blur()")
            page.page.screenshot(path=str(OF_POOL))
        slider.fill("280")
        page.click("Play")
        page.page.get_by_role("button", name="Pause").wait_for()
        page.page.get_by_role("button", name="Play").wait_for()  # it has come to the end
        page.wait_for_fact("Claims that wait", "0")
    assert page.complaints == []
    assert found.violations_count == 0, found.generate_report()
    assert too_wide == 0


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (1280, "dark")])
def test_a_pool_does_what_is_asked_on_its_page(
    started: Any, tmp_path: Path, width: int, theme: str
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    logins, found = Logins(), []
    with box(tmp_path) as here:
        here.start_pool("--devices", "3")
        claim = here.claim(1, name="mine")
        claim.until("given")
        runs = Runs(StateDirectory(here.directory / "pliant", tmp_path / "shared"))
        with served(create_app(runs, logins)) as port:
            page = Page(started, width=width, theme=theme)
            page.open(f"http://127.0.0.1:{port}/#code={logins.new_code()}")
            page.page.get_by_role("link", name="default").click()

            def ask(verb: str, answer: str) -> None:
                """Choose a verb in a dialog that is open, confirm it, and read what is answered."""
                found.append(axe.Axe().run(page.page))
                page.click(f"{verb}\u2026")
                page.page.locator("dialog").get_by_role("button", name=verb, exact=True).click()
                page.wait_for(answer, "dialog")
                page.page.keyboard.press("Escape")

            page.wait_for_fact("Devices in use", "1 of 3")
            page.click("2")
            page.page.get_by_label("Why").fill("it is hot")
            ask("Cordon", "device 2 is handed out no more")
            page.wait_for_fact("Out of use", "1")
            page.click("2")
            page.wait_for("it is hot", "dialog")
            ask("Uncordon", "device 2 is handed out again")
            page.click("New team\u2026")
            page.page.get_by_label("Name").fill("vision")
            page.page.get_by_label("Quota").fill("9")
            ask("Set", "the quotas 9 (vision) are more than the pool's 3 devices")
            page.click("New team\u2026")
            page.page.get_by_label("Name").fill("vision")
            page.page.get_by_label("Quota").fill("2")
            ask("Set", "vision")
            page.page.get_by_role("button", name="vision", exact=True).wait_for()
            page.page.get_by_label("Devices wanted").fill("5")
            page.click("Set devices")
            page.page.locator("dialog").get_by_role("button", name="Set", exact=True).click()
            page.wait_for_fact("Devices in use", "1 of 5")
            page.page.keyboard.press("Escape")
            page.click("mine")
            ask("Release", "mine")
            page.wait_for_fact("Devices in use", "0 of 5")
            assert claim.ended() != 0
            page.click("Stop the pool")
            page.page.locator("dialog").get_by_role("button", name="Stop", exact=True).click()
            page.wait_for("not connected")
    assert page.complaints == []
    for one in found:
        assert one.violations_count == 0, one.generate_report()


def test_a_report_needs_no_server(started: Any, world: World, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_of(world.out))
    page = Page(started, offline=True)
    page.open(file.as_uri())
    page.wait_for("91 of 3000")
    page.click("Audit the run")
    page.wait_for("committed step")
    page.page.get_by_role("button", name="asked to kill r2").click()
    page.wait_for('"kind": "kill_requested"', "dialog")
    page.page.keyboard.press("Escape")
    page.page.get_by_role("region", name="Output").scroll_into_view_if_needed()
    page.wait_for("first line", "pre")

    assert page.text("#link") == "a report of a run"
    assert page.page.get_by_role("button", name="Stop", exact=True).count() == 0
    assert page.page.evaluate("window.hacked") is None
    assert page.complaints == []


@pytest.mark.slow
def test_a_live_job_is_resized_from_its_own_page(started: Any, tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, "5000", "0.05", replicas=3, start=1) as job:
        job.wait_for_steps(3)
        with job.client() as client:
            code = client.post("/v1/login").json()["code"]
            page = Page(started)
            page.open(f"{client.base_url}/#code={code}")
        page.wait_for("compute 0.05 s", ".legend")
        before = page.fact("Replicas")
        members = int(before.split()[0])
        page.page.get_by_label("Replicas wanted").fill(str(members + 1))
        page.click("Scale")
        page.page.locator("dialog").get_by_role("button", name="Scale").click()
        page.wait_for("grow", "dialog")
        page.page.keyboard.press("Escape")
        page.wait_for_fact("Replicas", f"{members + 1} of {members + 1} wanted")
        (joined,) = board_of(job.records()).resizes()
        page.wait_for(f"{joined.replicas[0]} join", "table")
        assert page.page.locator(".lanes svg text").count() == members + 1

        page.page.get_by_role("button", name=joined.replicas[0], exact=True).click()
        page.page.locator("dialog").get_by_role("button", name="Kill").click()
        page.page.locator("dialog").last.get_by_role("button", name="Kill").click()
        page.wait_for("was ended by SIGKILL", "table")
        page.page.keyboard.press("Escape")
        page.click("Checkpoint now")
        page.page.locator("dialog").get_by_role("button", name="Save").click()
        page.wait_for("its script keeps no checkpoints", "dialog")
        page.page.keyboard.press("Escape")
        page.click("Stop")
        page.page.locator("dialog").get_by_role("button", name="Stop").click()
        page.page.keyboard.press("Escape")
        job.exit_code()

    assert page.complaints == []
