"""A pool and its claimants, each in a process of its own; what is true is seen from outside."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.pool.box import Box, box, until

from pliant.machine import locks, run_files
from pliant.machine.device_locks import take_device
from pliant.machine.interfaces import user_name
from pliant.machine.processes import process_started
from pliant.machine.registry import served

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def has_open(pid: int, path: Path) -> bool:
    return any(fd.resolve() == path.resolve() for fd in Path(f"/proc/{pid}/fd").iterdir())


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as lent:
        yield lent


def test_a_claim_gets_devices_holds_their_locks_and_frees_them_by_dying(here: Box) -> None:
    here.start_pool("--devices", "4")
    claim = here.claim(2, name="mine")
    claim.until("given")

    assert claim.devices == [0, 1]
    assert here.used() == {0, 1}
    assert here.users(0) == here.users(1) == {claim.pid}

    claim.kill()
    until(lambda: here.claims() == {}, "the pool has noticed")
    assert here.used() == set()
    assert here.status()["free"] == 4
    [gone] = here.records("gone")
    assert gone["reason"] == f"its process {claim.pid} is dead"


def test_a_more_important_claim_takes_what_it_needs_and_says_from_whom(here: Box) -> None:
    here.start_pool("--devices", "4")
    low = here.claim(3, name="low")
    low.until("given")

    urgent = here.claim(2, "--priority", "urgent", name="urgent")

    assert low.ended() == 3
    assert low.reason.startswith("devices 0, 1, 2 were taken back: suspend, and give back 3")
    urgent.until("given")
    assert here.used() == set(urgent.devices)
    [suspend] = here.records("suspend")
    assert (suspend["name"], suspend["for_"]) == ("low", "urgent")
    _, told = here.run("explain", "--pool", "--json")
    moves = json.loads(told)["moves"]
    assert ("low", "urgent") in [(move["claim"], move["for_"]) for move in moves]


def test_a_claim_that_has_to_wait_says_why_and_gets_its_turn(here: Box) -> None:
    here.start_pool("--devices", "2")
    first = here.claim(2, name="first")
    first.until("given")

    second = here.claim(1, name="second")
    second.until("waiting")
    assert "none idle; 2 cannot be preempted: normal is not below normal" in second.reason

    first.send(signal.SIGINT)
    assert first.ended() == 3
    second.until("given")


def test_a_command_has_its_devices_and_shares_their_locks(here: Box, tmp_path: Path) -> None:
    here.start_pool("--devices", "4")
    script = "echo $PLIANT_DEVICES > said; exec sleep 60"
    claim = here.claim(2, "--", "sh", "-c", f"cd {tmp_path}; {script}", name="mine")
    until((tmp_path / "said").exists, "the command runs")
    until(lambda: (tmp_path / "said").read_text(), "the command has said its devices")

    assert (tmp_path / "said").read_text() == "0,1\n"
    [command] = here.users(0) - {claim.pid}

    claim.kill()  # the command is told to end as well
    until(lambda: here.used() == set(), "the devices are free")
    until(lambda: here.status()["free"] == 4, "the pool has noticed")
    assert process_started(command) is None


def test_a_command_that_does_not_end_when_its_claim_dies_is_ended(here: Box) -> None:
    here.start_pool("--devices", "2", grace_s=0.3)
    stubborn = "trap '' TERM; echo; while :; do sleep 0.05; done"
    claim = here.claim(1, "--", "sh", "-c", stubborn, name="stubborn")
    claim.until("given")
    until(lambda: len(here.users(0)) >= 2, "the command runs")

    claim.kill()

    until(lambda: here.used() == set(), "the device is free")
    until(lambda: here.records("ended"), "it is told")
    assert {record["name"] for record in here.records("ended")} == {"stubborn"}
    until(lambda: here.status()["free"] == 2, "the pool has noticed")


def test_what_a_command_leaves_behind_is_ended(here: Box) -> None:
    here.start_pool("--devices", "1", grace_s=0.3)

    code, said = here.run("claim", "1", "--name", "mine", "--", "sh", "-c", "sleep 60 & exit 0")

    assert (code, said.splitlines()[-1]) == (0, "the command has ended; device 0 is given back")
    until(lambda: here.used() == set(), "the device is free")
    until(lambda: here.records("ended"), "it is told")
    assert [record["name"] for record in here.records("ended")] == ["mine"]
    until(lambda: here.status()["free"] == 1, "the pool has noticed")


def test_a_second_signal_ends_a_command_that_ignores_the_first(here: Box, tmp_path: Path) -> None:
    here.start_pool("--devices", "1")
    stubborn = "trap 'echo > heard' TERM; echo > runs; while :; do sleep 0.05; done"
    claim = here.claim(1, "--", "sh", "-c", f"cd {tmp_path}; {stubborn}", name="stubborn")
    until((tmp_path / "runs").exists, "the command runs")

    claim.send(signal.SIGTERM)
    until((tmp_path / "heard").exists, "the command has heard of it")
    claim.send(signal.SIGTERM)

    assert claim.ended() == 3
    until(lambda: here.used() == set(), "the device is free")


def test_the_exit_code_is_the_commands(here: Box) -> None:
    here.start_pool("--devices", "2")

    assert here.run("claim", "1", "--", "sh", "-c", "exit 7")[0] == 7
    assert here.run("claim", "1", "--for", "0.2s")[0] == 0
    assert here.run("claim", "1", "--", "/no/such/program")[0] == 127
    assert here.run("claim", "1", "--for", "0.2s", "--", "sleep", "60")[0] == 0


def test_what_its_owner_has_died_of_is_not_handed_out_twice(here: Box) -> None:
    """The pool is killed and started again while one claim holds devices and one has died."""
    pool = here.start_pool("--devices", "4")
    keeps, dies = here.claim(2, name="keeps"), here.claim(1, name="dies")
    keeps.until("given")
    dies.until("given")
    held = set(keeps.devices)

    pool.kill()
    dies.kill()
    assert here.used() == held
    here.start_pool("--devices", "4")
    fresh = here.claim(2, name="fresh")
    fresh.until("given")

    assert here.used() == held | set(fresh.devices)
    assert not held & set(fresh.devices)
    assert keeps.code is None
    assert {record["claim"]["name"] for record in here.records("recovered")} == {"keeps"}
    one_more = here.claim(1, name="one-more")
    one_more.until("waiting")


def test_who_cannot_speak_keeps_its_devices_over_a_restart(here: Box) -> None:
    pool = here.start_pool("--devices", "2")
    stopped = here.claim(1, name="stopped")
    stopped.until("given")
    stopped.send(signal.SIGSTOP)

    pool.kill()
    here.start_pool("--devices", "2", silent_s=1.0)
    until(lambda: not here.status()["recovering"], "the pool has waited long enough")
    other = here.claim(2, name="other")
    other.until("waiting")

    assert here.used() == set(stopped.devices)
    stopped.send(signal.SIGCONT)
    stopped.send(signal.SIGINT)
    assert stopped.ended() == 3
    other.until("given")


def test_a_pool_that_has_lost_its_state_keeps_off_what_is_in_use(here: Box) -> None:
    pool = here.start_pool("--devices", "2")
    holder = here.claim(1, name="holder")
    holder.until("given")
    pool.kill()
    (here.pools / "default" / "state.json").unlink()

    here.start_pool("--devices", "2")
    other = here.claim(1, name="other")
    other.until("given")

    assert set(other.devices).isdisjoint(holder.devices)
    assert holder.code is None
    assert here.claims()["holder"]["devices"] == holder.devices


def test_a_device_that_a_stranger_uses_is_not_handed_out(here: Box) -> None:
    here.start_pool("--devices", "2")
    lock = take_device(here.locks, 0, claim="a stranger")
    assert lock is not None
    try:
        until(lambda: here.status()["devices"][0]["is_blocked"], "the pool has noticed")
        claim = here.claim(1, name="mine")
        claim.until("given")
        assert claim.devices == [1]
    finally:
        lock.release()
    until(lambda: here.status()["free"] == 1, "the device is handed out again")


def test_a_claimant_past_its_notice_loses_what_it_was_given_last(here: Box) -> None:
    """A program that takes devices, and hears nothing: it is ended, and only there."""
    here.start_pool("--devices", "2", grace_s=0.3)
    deaf = here.claim(1, "--notice", "0.5s", name="deaf")
    deaf.until("given")
    deaf.send(signal.SIGSTOP)

    urgent = here.claim(2, "--priority", "urgent", name="urgent")
    urgent.until("given")

    assert deaf.ended() == -signal.SIGKILL
    [ended] = here.records("ended")
    assert (ended["name"], ended["device"]) == ("deaf", 0)
    assert ended["pids"] == [deaf.pid]


FILE = "apiVersion: pliant.dev/v1alpha1\nkind: Pool\nspec:\n  devices: "


def test_a_command_is_confined_to_devices_of_the_kind_that_was_asked_for(
    here: Box, tmp_path: Path
) -> None:
    here.environment.pop("CUDA_VISIBLE_DEVICES", None)
    last = max(os.sched_getaffinity(0))
    strange = here.start("pool", "start", "--devices", "cpu:4000")
    assert strange.ended() == 2
    assert "core 4000 is not one of this machine's" in strange.said()
    file = tmp_path / "pool.yaml"
    file.write_text(FILE + f"cuda:4-6+cpu:{last}\n")
    here.start_pool("--config", str(file))
    says = "echo $PLIANT_DEVICES/$CUDA_VISIBLE_DEVICES/$OMP_NUM_THREADS"
    says += "; grep Cpus_allowed_list /proc/self/status"

    _, gpus = here.run("claim", "2", "--", "sh", "-c", says)
    _, core = here.run("claim", "1", "--kind", "cpu", "--", "sh", "-c", says)
    code, none = here.run("claim", "1", "--kind", "tpu")

    assert "0,1/4,5/\n" in gpus
    assert gpus.startswith("cuda:4, cuda:5 are yours\n")
    assert "3//1\n" in core
    assert f"Cpus_allowed_list:\t{last}\n" in core
    assert code == 2
    assert "there is no device of kind 'tpu'; there are cuda (3), cpu (1)" in none
    assert here.run("pool", "cordon", "cuda:6")[1] == "cuda:6 is handed out no more\n"
    assert [one["name"] for one in here.status()["devices"]] == [
        *("cuda:4", "cuda:5", "cuda:6"),
        f"cpu:{last}",
    ]
    assert "cuda:6 is cordoned by" in here.run("top")[1]
    assert here.run("pool", "set", "--devices", "9")[0] == 2


def test_devices_come_and_go_by_hand(here: Box) -> None:
    here.start_pool("--devices", "2")
    claim = here.claim(2, name="mine")
    claim.until("given")

    assert here.run("pool", "set", "--devices", "1") == (0, "1 device\n")
    assert claim.ended() == 3
    assert claim.reason.startswith("devices 0, 1 were taken back: suspend, and give back 2")
    assert here.run("pool", "set", "--devices", "3")[0] == 0
    assert here.run("pool", "cordon", "0", "--reason", "fan is loud")[0] == 0
    waits = here.claim(3, "--wait", "60s", name="waits")
    waits.until("waiting")
    said = f"device 0 is cordoned by {user_name(os.geteuid())} since "
    until(lambda: said in waits.reason and waits.reason.endswith(": fan is loud"), "it is told why")
    waits.program.send_signal(15)
    waits.ended()
    again = here.claim(2, name="again")
    again.until("given")
    assert again.devices == [1, 2]
    assert here.run("pool", "drain", "1")[1] == "device 1 is taken back; again has it\n"
    assert again.ended() == 3
    assert again.reason.startswith("devices 1, 2 were taken back")
    here.run("pool", "uncordon", "0")
    here.run("pool", "uncordon", "1")
    assert here.status()["free"] == 3


def test_a_claim_without_a_command_goes_on_with_others_when_a_device_is_drained(
    here: Box,
) -> None:
    here.start_pool("--devices", "4")
    holds = here.claim(2, name="holds")
    holds.until("given")
    runs = here.claim(1, "--", "sleep", "60", name="runs")
    runs.until("given")

    here.run("pool", "drain", "0")
    holds.until("moved")

    assert holds.reason == "devices 1, 3 are yours in place of devices 0, 1"
    assert holds.devices == [1, 3]
    until(lambda: here.claims()["holds"]["devices"] == [1, 3], "the pool knows")
    assert here.users(0) == set()
    assert here.users(1) == here.users(3) == {holds.pid}

    here.run("pool", "uncordon", "0")
    here.run("pool", "drain", "2")
    assert runs.ended() == 3
    assert runs.reason == (
        "device 2 was taken back: device 2 is drained, and a command that runs cannot go on with "
        "others"
    )


def test_what_was_set_outlives_the_pool_unless_it_is_started_with_something_else(
    here: Box,
) -> None:
    here.start_pool("--devices", "4").kill()
    pool = here.start_pool("--devices", "4")
    here.run("pool", "set", "--devices", "3")

    pool.kill()
    pool = here.start_pool("--devices", "4")
    assert here.status()["size"] == 3
    pool.kill()
    here.start_pool("--devices", "5")
    assert here.status()["size"] == 5


def test_quotas_and_classes_outlive_an_orderly_end(here: Box) -> None:
    pool = here.start_pool("--devices", "4")
    here.run("pool", "set-team", "vision", "--quota", "3")
    here.run("pool", "set-class", "nightly", "--value", "-500")
    here.run("pool", "set", "--devices", "3")

    here.run("pool", "stop")
    pool.ended()
    too_few = here.start("pool", "start", "--devices", "2")
    assert too_few.ended() == 2
    assert "the quotas 3 (vision) are more than the pool's 2 devices" in too_few.said()
    assert "state.json); begin without them with --forget" in too_few.said()
    pool = here.start_pool("--devices", "4")
    board = here.status()
    assert board["size"] == 4
    assert board["classes"]["nightly"] == -500
    assert {team["team"]: team["quota"] for team in board["teams"]}["vision"] == 3

    here.run("pool", "stop")
    pool.ended()
    (here.pools / "default" / "state.json").write_bytes(b'{"version":1,"teams":')
    damaged = here.start("pool", "start", "--devices", "4")
    assert damaged.ended() == 2
    assert "state.json is no state of a pool" in damaged.said()
    (here.pools / "default" / "state.json").unlink()
    pool = here.start_pool("--devices", "4")
    here.run("pool", "set-team", "vision", "--quota", "3")
    here.run("pool", "stop")
    pool.ended()
    here.start_pool("--devices", "2", "--forget")
    assert [team["team"] for team in here.status()["teams"]] == ["default"]


def test_metrics_tell_what_is_used(here: Box) -> None:
    here.start_pool("--devices", "2")
    here.run("pool", "set-team", "vision", "--quota", "1")
    one = here.claim(2, "--team", "vision", name="mine")
    one.until("given")
    waits = here.claim(1, name="waits")
    waits.until("waiting")

    page = httpx.get(f"{here.served().url}/metrics", trust_env=False).text
    assert 'pliant_pool_devices{kind="",state="in_use"} 2.0' in page
    assert 'pliant_pool_claims{state="waiting"} 1.0' in page
    assert 'pliant_pool_team_share{team="vision"} 2.0' in page
    assert "pliant_pool_grants_total 1.0" in page
    assert "mine" not in page
    one.program.send_signal(15)
    one.ended()
    waits.program.send_signal(15)
    waits.ended()


def test_a_claim_that_is_released_ends_what_runs(here: Box) -> None:
    here.start_pool("--devices", "1")
    mine = here.claim(1, "--notice", "3s", "--", "sleep", "60", name="mine")
    mine.until("given")

    code, said = here.run("pool", "release", "mine")

    assert (code, said) == (0, "mine is told to give everything back within 3 s\n")
    assert mine.ended() == 3
    assert mine.reason == f"device 0 was taken back: {user_name(os.geteuid())} has released mine"
    until(lambda: not here.claims(), "the pool knows")
    assert here.run("pool", "release", "mine")[0] == 2
    assert here.records("release")[-1]["by"] == user_name(os.geteuid())


def test_a_pool_that_is_stopped_leaves_nothing_but_its_files(here: Box) -> None:
    pool = here.start_pool("--devices", "2")

    _, said = here.run("pool", "stop")

    assert said == "pool default stops\n"
    assert served("pool", here.pools) == []
    assert pool.ended() == 0
    assert sorted(path.name for path in here.pools.iterdir()) == ["default"]
    left = sorted(path.name for path in (here.pools / "default").iterdir())
    assert left == ["devices", "events.jsonl", "running.lock", "state.json"]


def test_a_pool_waits_for_one_of_its_name_that_is_about_to_end(here: Box) -> None:
    directory = here.pools / "default"
    directory.mkdir(parents=True, mode=0o700)
    lock = directory / run_files.RUNNING_LOCK
    with locks.locked(lock, within_s=0) as is_ours:
        assert is_ours
        pool = here.start("pool", "start", "--devices", "2")
        until(lambda: has_open(pool.pid, lock) or pool.code is not None, "it is at the lock")
        assert pool.code is None, pool.said()

    until(lambda: served("pool", here.pools) != [], "the pool serves")


def test_who_has_devices_keeps_them_when_the_pool_is_stopped(here: Box) -> None:
    pool = here.start_pool("--devices", "2")
    claim = here.claim(1, name="mine")
    claim.until("given")

    assert here.run("pool", "stop")[1] == "pool default stops; mine keeps what it has\n"
    assert pool.ended() == 0
    claim.until("alone")
    assert here.used() == set(claim.devices)
    here.start_pool("--devices", "2")
    until(lambda: "mine" in here.claims(), "the next pool knows it")
    assert here.claims()["mine"]["devices"] == claim.devices
