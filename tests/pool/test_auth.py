"""A pool of several users: each has what is its own, and nobody speaks or takes for another."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.pool.box import Process, until
from tests.pool.town import ADA, BOB, GROUP, OWNER, STRANGER, Town, needs_root, town
from tests.processes import elastic

from pliant.core.tenancy import BURST, REST_S
from pliant.machine import device_locks
from pliant.machine.locks import who_holds
from pliant.observe.reading import read

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180), needs_root]

SCRIPT = Path(elastic.__file__).with_name("train_model.py")

STEALS = """
import fcntl, os, sys
from pathlib import Path
for device in range(8):
    path = Path(sys.argv[1]) / f"{device}.lock"
    for how in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
        try:
            fd = os.open(path, how, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("took", device, flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
"""

LOOKS = """
import os, socket, sys
from pathlib import Path
pool = Path(sys.argv[1])
for path in (pool, pool / "devices", pool / "events.jsonl", pool / "state.json"):
    try:
        print(path.name, os.listdir(path) if path.suffix == "" else path.read_text())
    except OSError as error:
        print(path.name, type(error).__name__)
try:
    socket.socket(socket.AF_UNIX).connect(str(pool / "socket"))
    print("connected")
except OSError as error:
    print("socket", type(error).__name__)
print(str(pool) in Path("/proc/net/unix").read_text())
"""

TAKES_IN = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + sys.argv[1])
listener.listen()
print("listens", flush=True)
_, kept, _, _ = socket.recv_fds(listener.accept()[0], 1, 1)
print("has", flush=True)
time.sleep(60)
"""

HANDS_ON = """
import os, socket, sys, time
ours = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")}
lock = next(fd for fd, path in ours.items() if path.endswith(".lock"))
other = socket.socket(socket.AF_UNIX)
other.connect("\\0" + sys.argv[1])
socket.send_fds(other, [b"x"], [lock])
time.sleep(60)
"""

STAYS = """
import json, sys, time
import httpx
http = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), base_url="http://pool")
body = {"wanted": json.loads(sys.argv[3]), "pid": 1}
while True:
    answer = http.put(f"/v1/claims/{sys.argv[2]}", json=body)
    said = answer.json()
    print(json.dumps([answer.status_code, said]), flush=True)
    if answer.status_code == 200:
        body |= {"pool": said["pool"], "revision": said["revision"], "holds": said["devices"]}
    time.sleep(0.1)
"""

ASKS = """
import json, sys
import httpx
http = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), base_url="http://pool")
for method, path, body in json.loads(sys.argv[2]):
    answer = http.request(method, path, json=body)
    print(json.dumps([answer.status_code, answer.json()]), flush=True)
"""


@pytest.fixture
def here() -> Iterator[Town]:
    with town() as lent:
        yield lent


@pytest.fixture(scope="module")
def quiet() -> Iterator[Town]:
    """One pool for the tests that leave it as it was."""
    with town() as lent:
        lent.start_pool("--devices", "8")
        yield lent


def staying(here: Town, uid: int, name: str, **wanted: object) -> Process:
    """Claim as a user, and follow whatever is offered, from one process that stays."""
    words = (here.pools / "ml" / "socket", name, json.dumps(wanted))
    return here.run(uid, "-c", STAYS, *words)


def answers(process: Process) -> list[tuple[int, dict[str, Any]]]:
    """Return what the pool has answered so far."""
    lines = [line for line in process.said().splitlines() if line.endswith("]")]
    return [(code, said) for code, said in map(json.loads, lines)]


def asked(here: Town, uid: int, *requests: tuple[str, str, object]) -> list[tuple[int, str]]:
    """Ask as a user without pliant's manners; return status codes and sentences."""
    process = here.run(uid, "-c", ASKS, here.pools / "ml" / "socket", json.dumps(requests))
    assert process.ended(30.0) == 0, process.said()
    said = [json.loads(line) for line in process.said().splitlines()]
    return [(code, str(body.get("detail") or body.get("reason") or body)) for code, body in said]


def test_users_share_a_pool_and_each_speaks_for_itself_alone(quiet: Town) -> None:
    here = quiet
    ada = here.claim(ADA, 2, "--", "sh", "-c", "id -u; exec sleep 60", name="gpt")
    bob = here.claim(BOB, 1, name="gpt")
    ada.until("given")
    bob.until("given")

    board = here.board()
    assert {name: one["devices"] for name, one in board.items() if name.endswith("/gpt")} == {
        f"{ADA}/gpt": ada.devices,
        f"{BOB}/gpt": bob.devices,
    }
    assert board[f"{ADA}/gpt"]["pid"] == ada.pid
    until(lambda: str(ADA) in ada.said().split(), "the command runs as its user")
    asked_by = [record["claim"]["name"] for record in here.records("asked")]
    assert {f"{ADA}/gpt", f"{BOB}/gpt"} <= set(asked_by)

    # Bob takes, ends, forges and reads nothing of Ada's.
    for device in ada.devices:
        note = device_locks.written_on(here.locks, device)
        assert note.claim == f"{ADA}/gpt"
    thief = here.run(BOB, "-c", STEALS, here.locks)
    thief.ended()
    took = {line.split()[1] for line in thief.said().splitlines() if line.startswith("took")}
    assert took <= {str(device) for device in bob.devices}
    lies = {
        "wanted": {"kind": "fixed", "min_replicas": 1, "ask_replicas": 1},
        "pid": ada.pid,
        "holds": [0, 1, 2, 3],
        "url": "http://127.0.0.1:1",
        "token": "x",
    }
    answers = asked(
        here,
        BOB,
        ("DELETE", f"/v1/claims/gpt?pid={ada.pid}", None),
        ("DELETE", f"/v1/claims/{ADA}%2Fgpt", None),
        ("PUT", "/v1/claims/other", lies),
        ("POST", "/v1/devices", {"devices": 0}),
        ("POST", "/v1/devices/0/cordon", None),
        ("PUT", "/v1/teams/mine", {"name": "mine", "quota": 4}),
        ("PUT", "/v1/classes/first", {"value": 9999}),
        ("POST", "/v1/release", {"claim": f"{ADA}/gpt"}),
        ("POST", "/v1/stop", None),
    )
    assert [code for code, _ in answers] == [200, 404, 200, 403, 403, 403, 403, 403, 403]
    assert answers[3][1] == (f"only {OWNER}, whose pool it is, and root may do this; you are {BOB}")
    state = json.loads((here.pools / "ml" / "state.json").read_text())
    others = [claim for claim in state["claims"] if claim["name"] == f"{BOB}/other"]
    assert all(claim["pid"] != ada.pid and claim["uid"] == BOB for claim in others)
    assert here.board()[f"{ADA}/gpt"]["devices"] == ada.devices
    assert ada.code is None
    code, said = here.pliant(BOB, "pool", "cordon", "0", "--pool", "ml")
    assert (code, "only" in said) == (2, True), said

    # What the owner and root do counts, and a member may look.
    assert here.pliant(OWNER, "pool", "cordon", "3", "--pool", "ml")[0] == 0
    assert here.pliant(0, "pool", "uncordon", "3", "--pool", "ml")[0] == 0
    code, said = here.pliant(BOB, "explain", "--pool", "ml")
    assert code == 0
    assert f"{ADA}/gpt" in said
    assert here.pliant(OWNER, "pool", "release", f"{ADA}/gpt", "--pool", "ml")[0] == 0
    assert ada.ended() == 3
    assert f"{OWNER} has released {ADA}/gpt" in ada.said()
    bob.program.send_signal(15)
    bob.ended()


def test_who_is_not_of_the_group_gets_nothing(quiet: Town) -> None:
    here = quiet
    holder = here.claim(ADA, 1, name="mine")
    holder.until("given")

    stranger = here.run(STRANGER, "-c", LOOKS, here.pools / "ml", gid=STRANGER)
    stranger.ended()
    code, said = here.pliant(STRANGER, "claim", 1, "--pool", "ml", gid=STRANGER)

    assert stranger.said().splitlines() == [
        "ml PermissionError",
        "devices PermissionError",
        "events.jsonl PermissionError",
        "state.json PermissionError",
        "socket PermissionError",
        "False",
    ]
    assert code == 2
    assert "no pool named ml is running" in said
    member = here.run(BOB, "-c", LOOKS, here.pools / "ml")
    member.ended()
    assert member.said().splitlines()[:4] == stranger.said().splitlines()[:4]
    assert "connected" in member.said()


def test_a_device_that_is_passed_on_is_out_of_reach_of_who_had_it(here: Town) -> None:
    """Ada's command leaves a process behind, and another keeps the file open that was hers."""
    here.start_pool("--devices", "1")
    ada = here.claim(ADA, 1, "--", "sh", "-c", "setsid sleep 61 & exec sleep 60", name="first")
    ada.until("given")
    until(lambda: left_behind(ada.pid), "the command runs")
    (left,) = left_behind(ada.pid)
    file = here.locks / "0.lock"
    hers = os.open(file, os.O_RDONLY)  # kept open, as she could: its number is not used again

    ada.program.send_signal(15)
    ada.ended()
    bob = here.claim(BOB, 1, "--", "sleep", "60", name="second")
    until(lambda: here.records("not_ended"), "it is told")

    # It is not the pool's to end, as its owner is not root; nothing is handed on.
    [told] = here.records("not_ended")
    assert told["reason"].endswith(
        f"keeps it and is not ended by {OWNER}; it is free once that has ended"
    )
    assert f"process {ada.pid} " in told["reason"]
    bob.until("waiting")
    os.kill(left, signal.SIGKILL)
    bob.until("given")
    assert not os.path.samestat(os.fstat(hers), file.stat())
    os.close(hers)


def left_behind(claim: int) -> list[int]:
    """Return the process that a claim's command has started in a session of its own."""
    family = psutil.Process(claim).children(recursive=True)
    return [one.pid for one in family if one.cmdline() == ["sleep", "61"]]


def test_root_ends_what_a_claim_has_left_behind(here: Town) -> None:
    here.start_pool("--devices", "1", owner=0)
    ada = here.claim(ADA, 1, "--", "sh", "-c", "setsid sleep 61 & exec sleep 60", name="first")
    ada.until("given")
    until(lambda: left_behind(ada.pid), "the command runs")
    (left,) = left_behind(ada.pid)

    ada.program.send_signal(15)
    ada.ended()
    bob = here.claim(BOB, 1, "--", "sleep", "60", name="second")
    bob.until("given")

    [ended] = here.records("ended")
    assert (ended["name"], ended["pids"]) == (f"{ADA}/first", [left])
    assert bob.code is None


def test_root_ends_nobody_who_was_handed_the_device_of_another(here: Town) -> None:
    """Ada sends her open, locked file to a daemon of Bob's, and stays away from her device."""
    here.start_pool("--devices", "1", owner=0)
    way = f"pliant-test-{os.getpid()}"
    daemon = here.run(BOB, "-c", TAKES_IN, way)
    until(lambda: "listens" in daemon.said(), "the daemon listens")
    ada = here.claim(ADA, 1, "--", sys.executable, "-c", HANDS_ON, way, name="first")
    until(lambda: "has" in daemon.said().split(), f"it was handed the lock: {ada.said()}")

    ada.program.send_signal(15)
    ada.ended()
    until(lambda: here.records("not_ended") or here.records("ended"), "it is told")

    assert here.records("ended") == []
    [told] = here.records("not_ended")
    assert told["reason"].endswith(
        "keeps it and is not ended by root; it is free once that has ended"
    )
    assert daemon.code is None
    bob = here.claim(BOB, 1, name="second")
    bob.until("waiting")
    daemon.kill()
    bob.until("given")


@pytest.mark.soak
def test_who_is_taken_off_a_team_is_still_told_what_to_give_back(here: Town) -> None:
    """Else it would be killed after a notice that it never heard of."""
    here.start_pool("--devices", "2")
    team = ("pool", "set-team", "vision", "--quota", "2", "--pool", "ml", "--user")
    here.pliant(OWNER, *team, str(ADA))
    ada = staying(here, ADA, "gpt", team="vision", ask_replicas=2)
    until(lambda: answers(ada) and len(answers(ada)[-1][1]["devices"]) == 2, "she has both")

    here.pliant(OWNER, *team, str(BOB))
    bob = here.claim(BOB, 1, "--team", "vision", "--priority", "urgent", name="now")
    bob.until("given")

    assert {code for code, _ in answers(ada)} == {200}
    until(lambda: answers(ada)[-1][1]["replicas"] == 1, "she has heard of it")
    late = here.claim(ADA, 1, "--team", "vision", name="more")
    assert late.ended() == 2
    assert f"team vision is for {BOB}, and you are {ADA}" in late.said()


def test_to_give_back_what_nobody_wants_and_get_it_again_is_limited(here: Town) -> None:
    here.start_pool("--devices", "2")
    wanted = {"wanted": {"min_replicas": 1, "ask_replicas": 2}, "pid": 1}
    churns = here.run(
        BOB,
        "-c",
        "import json, sys, time, httpx\n"
        "http = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]),"
        " base_url='http://pool')\n"
        "body, codes = json.loads(sys.argv[2]), []\n"
        "for _ in range(150):\n"
        "    answer = http.put('/v1/claims/x', json=body)\n"
        "    codes.append(answer.status_code)\n"
        "    if answer.is_success:\n"
        "        said = answer.json()\n"
        "        new = {name: said[name] for name in ('pool', 'revision')}\n"
        "        body |= new | {'holds': said['devices'][:1]}\n"
        "print(json.dumps(codes), flush=True)\n"
        "time.sleep(60)",
        here.pools / "ml" / "socket",
        json.dumps(wanted),
    )
    until(lambda: "]" in churns.said(), "it has asked", 60.0)

    codes = json.loads(churns.said().splitlines()[-1])
    assert set(codes) == {200, 429}, codes
    assert len(here.records("grant")) <= 90


def test_teams_and_classes_are_for_their_users_and_a_restart_forgets_nothing(here: Town) -> None:
    pool = here.start_pool("--devices", "2")
    own = ("--pool", "ml")
    here.pliant(OWNER, "pool", "set-team", "vision", "--quota", "1", "--user", str(ADA), *own)
    here.pliant(OWNER, "pool", "set-class", "urgent", "--value", "1000", "--user", str(OWNER), *own)

    holds = here.claim(ADA, 1, "--team", "vision", name="mine")
    holds.until("given")
    refused = here.claim(BOB, 1, "--team", "vision", name="mine")
    assert refused.ended() == 2
    assert f"team vision is for {ADA}, and you are {BOB}" in refused.said()
    urgent = here.claim(BOB, 1, "--priority", "urgent", name="now")
    assert urgent.ended() == 2
    assert f"class urgent is for {OWNER}, and you are {BOB}" in urgent.said()

    pool.kill()
    lies = {"wanted": {"kind": "fixed", "min_replicas": 1, "ask_replicas": 1}, "pid": 1}
    here.start_pool("--devices", "2")
    asked(here, BOB, ("PUT", "/v1/claims/all", lies | {"holds": [0, 1]}))
    until(lambda: f"{ADA}/mine" in here.board(), "she is known again")
    assert here.board()[f"{ADA}/mine"]["devices"] == holds.devices
    late = here.claim(BOB, 1, "--team", "vision", name="mine")
    assert late.ended() == 2


def test_nobody_fills_a_pool(quiet: Town) -> None:
    """Claims, changes and connections of one user leave room for the others."""
    here, before, began_s = quiet, len(quiet.records("asked")), time.monotonic()
    flood = here.run(
        BOB,
        "-c",
        "import json, socket, sys, time\n"
        "import httpx\n"
        "kept = []\n"
        "for _ in range(400):\n"
        "    kept.append(socket.socket(socket.AF_UNIX)); kept[-1].connect(sys.argv[1])\n"
        "http = httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), "
        "base_url='http://pool', timeout=30)\n"
        "codes = []\n"
        "for number in range(200):\n"
        "    wanted = {'kind': 'fixed', 'min_replicas': 1, 'ask_replicas': 1, "
        "'can_suspend': bool(number % 2)}\n"
        "    try:\n"
        "        codes.append(http.put(f'/v1/claims/c{number % 90}', "
        "json={'wanted': wanted, 'pid': 1}).status_code)\n"
        "    except httpx.HTTPError: codes.append(0)\n"
        "print(json.dumps(codes), flush=True)\n"
        "time.sleep(60)",
        here.pools / "ml" / "socket",
    )
    until(lambda: "]" in flood.said(), "it has flooded", 60.0)

    codes = json.loads(flood.said().splitlines()[-1])
    assert set(codes) <= {0, 200, 403, 429, 409}
    assert 429 in codes or 403 in codes
    earned = (time.monotonic() - began_s) / REST_S
    assert len(here.records("asked")) - before <= BURST + earned + 1
    ada = here.claim(ADA, 1, "--priority", "high", name="late")
    ada.until("given")
    file = device_locks.path_of(here.locks, ada.devices[0])
    assert who_holds(file) == f"process {ada.pid} of user {ADA}"
    flood.kill()


@pytest.mark.soak
def test_a_job_trains_as_its_user_and_gives_way_to_another_user(here: Town) -> None:
    here.start_pool("--devices", "2")
    home = here.directory / str(ADA)
    job = here.run(
        *(ADA, "-m", "pliant", "run", "--pool=ml", "--name", "gpt", "--min", 1, "--max", 2),
        *("--out", home / "gpt", SCRIPT, "--model", "gpt", "--steps", 40, "--pace", 0.05),
        *("--digest-file", home / "digests"),
    )
    until(
        lambda: len(here.board().get(f"{ADA}/gpt", {}).get("devices", [])) == 2, "it has both", 90
    )
    log = home / "gpt" / "events.jsonl"
    until(lambda: log.exists() and log.read_text().count('"commit"') > 3, "it trains", 90)
    pids = [record["pid"] for record in read(log) if record["kind"] == "worker"]
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {ADA}

    bob = here.claim(BOB, 1, "--priority", "urgent", "--for", "1s", name="now")
    bob.until("given", 60)

    token = next(iter((here.directory / str(ADA) / "pliant" / "jobs").glob("*.token"))).read_text()
    state = (here.pools / "ml" / "state.json").read_text()
    assert token not in state
    assert token not in (here.pools / "ml" / "events.jsonl").read_text()
    assert job.ended(120.0) == 0, job.said()
    lines = (home / "digests").read_text().splitlines()
    assert {json.loads(line)["digest"] for line in lines} == {elastic.reference("gpt", 40)}


def test_a_group_that_is_not_there_is_said(here: Town) -> None:
    words = ("pool", "start", "--name", "ml", "--devices", "1")
    code, said = here.pliant(OWNER, *words, "--group", "no-such-group")
    assert (code, "there is no group 'no-such-group'" in said) == (2, True), said
    code, said = here.pliant(BOB, *words, "--group", str(GROUP))
    assert code == 2
    assert "cannot be shared: Permission denied" in said
