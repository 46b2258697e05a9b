"""What the pages say is so."""

from __future__ import annotations

import inspect
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())

    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]

    assert missing == []


def test_the_script_of_the_readme_is_the_example() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    example = (ROOT / "examples" / "minimal.py").read_text()

    def code(text: str) -> list[str]:
        lines = (line.partition("#")[0].rstrip() for line in text.splitlines())
        return [line for line in lines if line and not line.startswith('"""')]

    assert code(script) == code(example)


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "pliant").glob("*/__init__.py")}

    mapped = set(
        re.findall(r"^\| `(\w+)/`", (ROOT / "docs/explanation/architecture.md").read_text(), re.M)
    )

    assert mapped == rooms


def test_every_fault_point_is_in_the_how_to_page() -> None:
    from pliant.testing.faults import POINTS

    text = (ROOT / "docs/howto/test-against-faults.md").read_text()

    assert [point for point in sorted(POINTS) if f"`{point}`" not in text] == []


def test_the_ways_through_the_rooms_and_the_places_to_open_exist() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    source = ROOT / "src" / "pliant"

    steps = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.MULTILINE)
    lost = [step for step in steps if f"def {step[1]}(" not in (source / step[0]).read_text()]
    places = re.findall(
        r"`((?:core|wire|cli|spec|engine|checkpoint|run|pool|observe|machine|http|coordinator|agent|simulate)/[\w/]+\.py)`",
        text,
    )

    assert len(steps) > 15
    assert lost == []
    assert [place for place in places if not (source / place).is_file()] == []


def _page(name: str) -> str:
    """Return a page of docs as one line."""
    return " ".join((ROOT / name).read_text().split())


def test_tests_that_a_page_names_are_there() -> None:
    named = {
        (page.name, path)
        for page in PAGES
        if page.parent.name != "decisions"  # which say what was so when they were made
        for path in re.findall(r"`((?:tests|examples)/[\w/.]+\.\w+)`", page.read_text())
    }

    assert len(named) > 20
    assert [where for where in sorted(named) if not (ROOT / where[1]).is_file()] == []


def test_the_readme_says_what_the_engine_adds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"]["engine"]
    (said,) = re.findall(r"# engine adds ([^;]*);", (ROOT / "README.md").read_text())

    assert re.split(r", | and ", said) == [re.split(r"[><=]", each)[0] for each in packages]


def test_every_file_of_a_run_is_on_its_page() -> None:
    from pliant.machine import run_files

    names = {value for name, value in vars(run_files).items() if name.isupper()}
    text = (ROOT / "docs/howto/read-a-run.md").read_text()
    shown = text.replace("events.000007.jsonl", run_files.CLOSED_EVENTS)

    missing = {name for name in names if f"`{name}`" not in shown and f"`{name}/" not in shown}

    assert missing == {run_files.STATE}, "which only a pool has"


def test_every_exit_code_is_on_its_page() -> None:
    from pliant.core import errors

    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    of_runs = set(map(int, re.findall(r"^\| (\d+) \|", _lines("run-a-job"), re.MULTILINE)))
    assert of_runs == codes - {errors.EXIT_AGENT_GONE, errors.EXIT_NOT_STARTED}
    of_claims = set(map(int, re.findall(r"^\| (\d+) \|", _lines("share-a-pool"), re.MULTILINE)))
    assert of_claims == {errors.EXIT_OK, errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_STOPPED}
    assert f"{errors.EXIT_NOT_STARTED} if it could not start" in _lines("share-a-pool")


def _lines(name: str) -> str:
    return (ROOT / "docs/howto" / f"{name}.md").read_text()


def test_every_kind_of_device_is_on_its_page() -> None:
    from pliant.core.device_names import CPU, THREADS, VISIBLE

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \|$", _lines("share-a-pool"), re.MULTILINE)
    said = {tuple(re.findall(r"`(\w+)`", kinds)): how for kinds, how in rows}
    shown = {kind: how for kinds, how in said.items() for kind in kinds}

    assert shown.keys() == {CPU, *VISIBLE}
    assert all(variable in shown[kind] for kind, names in VISIBLE.items() for variable in names)
    assert all(variable in shown[CPU] for variable in THREADS)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("docs/howto/read-a-run.md", "has {part_mb} MB; the newest {parts} remain, so a log"),
        ("docs/howto/read-a-run.md", "a log has at most {log_mb} MB"),
        ("docs/howto/share-a-pool.md", "It names up to {teams} teams"),
        (
            "docs/howto/share-a-pool.md",
            "has at most {claims} claims, and may change them {burst} times",
        ),
        ("docs/howto/share-a-pool.md", "{grace_s} s after the notice the pool kills"),
        ("docs/howto/share-a-pool.md", "free locks; it waits {silent_s} s at most"),
        ("docs/howto/run-in-a-pool.md", "after {rest_s} s, 2 s, up to every"),
        ("docs/howto/run-in-a-pool.md", "up to every {longest_rest_s} s"),
        ("docs/howto/run-a-job.md", "The newest {runs} ended runs are kept"),
        ("docs/howto/survive-and-resume.md", "after 1, 2, 4, ... {retry_s} s"),
        ("docs/howto/survive-and-resume.md", "the newest `keep={keep}`"),
        ("docs/howto/survive-and-resume.md", "else after {lease_minutes} minutes of silence"),
        (
            "docs/howto/checkpoints.md",
            "else after {lease_minutes} minutes of silence. The waiting job",
        ),
        ("docs/howto/checkpoints.md", "or one {upload_mb} MiB part ({timeout_s} s)"),
        ("docs/explanation/protocol.md", "(`register_s`, {register_s} s;"),
        ("docs/explanation/protocol.md", "for {apart_s} s; then one replica tries it"),
        (
            "docs/explanation/protocol.md",
            "up to {longest_apart_minutes} minutes; once replicas of both",
        ),
        ("docs/explanation/security.md", "{connections} connections (fewer with few descriptors)"),
        (
            "docs/explanation/security.md",
            "{ask_s} s to send a request; {requests} requests at once",
        ),
        (
            "docs/explanation/security.md",
            "{body_mb} MB of body; {events_mb} MB of events an answer",
        ),
        (
            "docs/explanation/security.md",
            "{user_requests} requests at once; {claims} claims, with {burst} changes",
        ),
        ("docs/explanation/security.md", "{strangers} strangers at once, {stranger_s} s each"),
        ("docs/explanation/security.md", "One JSON object of at most {message_mb} MB"),
        ("docs/explanation/security.md", "output is kept in {output_mb} MB per replica"),
        ("docs/explanation/security.md", "the event log in {log_mb} MB"),
        ("docs/explanation/allocation.md", "`min_gain` ({min_gain})"),
        ("docs/explanation/allocation.md", "has had its size for `rest_s` ({pool_rest_s} s)"),
        ("docs/explanation/allocation.md", "waited for `patience_s` ({patience_s} s)"),
        ("docs/explanation/allocation.md", "needs more than {at_once} devices at once"),
        (
            "docs/explanation/allocation.md",
            "`urgent` {urgent}, `high` {high}, `normal` {normal}, `low` {low}",
        ),
    ],
)
def test_a_limit_on_a_page_is_that_of_the_code(page: str, sentence: str) -> None:
    assert sentence.format(**_limits()) in _page(page)


@cache
def _limits() -> dict[str, str]:
    """Return the limits that pages tell, as they tell them."""
    from pliant.agent import placement
    from pliant.checkpoint import lease
    from pliant.checkpoint.checkpoint import Checkpoint
    from pliant.checkpoint.store import base, objects
    from pliant.core import durability, tenancy
    from pliant.core.allocation import admission
    from pliant.core.allocation.values import PoolRules
    from pliant.core.job import node_pauses
    from pliant.core.membership.state import Timeouts
    from pliant.core.tenancy import CLASS_VALUES
    from pliant.engine.comm import mesh
    from pliant.http import app, connections
    from pliant.machine import files
    from pliant.observe import parts, run_index
    from pliant.pool import pool_metrics
    from pliant.pool.claims import PoolSettings
    from pliant.wire import codec

    rules, mb = PoolRules(), 1 << 20
    keep = inspect.signature(Checkpoint).parameters["keep"].default
    values = {
        **CLASS_VALUES,
        "part_mb": parts.PART_BYTES / mb,
        "parts": parts.KEPT_PARTS,
        "log_mb": parts.PART_BYTES * (parts.KEPT_PARTS + 1) / mb,
        "teams": pool_metrics.MOST_TEAMS,
        "claims": tenancy.MOST_CLAIMS,
        "burst": tenancy.BURST,
        "grace_s": PoolSettings().grace_s,
        "silent_s": PoolSettings().silent_s,
        "rest_s": placement.REST_S,
        "longest_rest_s": placement.MAX_REST_S,
        "runs": run_index.KEPT,
        "retry_s": durability.MAX_RETRY_S,
        "keep": keep,
        "upload_mb": objects.PART_BYTES / mb,
        "timeout_s": base.StorageOptions().timeout_s,
        "register_s": Timeouts().register_s,
        "apart_s": node_pauses.APART_FIRST_S,
        "longest_apart_minutes": node_pauses.APART_LONGEST_S / 60,
        "connections": connections.MOST_CONNECTIONS,
        "ask_s": connections.REQUEST_S,
        "requests": app.MAX_IN_FLIGHT,
        "user_requests": app.MAX_IN_FLIGHT_OF_USER,
        "body_mb": app.MAX_BODY_BYTES / mb,
        "events_mb": app.MAX_EVENT_BYTES / mb,
        "strangers": mesh.MAX_STRANGERS,
        "stranger_s": mesh.STRANGER_S,
        "message_mb": codec.MAX_MESSAGE_BYTES / mb,
        "output_mb": files.MAX_FILE_BYTES * (files.KEPT_FILES + 1) / mb,
        "min_gain": rules.min_gain,
        "pool_rest_s": rules.rest_s,
        "patience_s": rules.patience_s,
        "at_once": admission.MOST_AT_ONCE,
    }
    minutes = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}
    said = {name: f"{value:g}" for name, value in values.items()}
    return said | {"lease_minutes": minutes[round(lease.TTL_S / 60)]}
