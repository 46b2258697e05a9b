"""What torch's tests of its launcher assert, of ours; the page on scripts lists the differences."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.processes.test_restart_mode import torchrun

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

SAYS = """
import json, os, pathlib, sys
where = pathlib.Path("rank-" + os.environ["RANK"] + "-" + os.environ["TORCHELASTIC_RESTART_COUNT"])
where.write_text(json.dumps({**os.environ, "words": " ".join(sys.argv[1:])}))
print("printed by", os.environ["RANK"], flush=True)
print("complained by", os.environ["RANK"], file=sys.stderr, flush=True)
"""


def said(directory: Path, restarts: int = 0) -> list[dict[str, str]]:
    """Return what each process was told, by rank."""
    files = directory.glob(f"rank-*-{restarts}")
    found = [json.loads(one.read_text()) for one in files]
    return sorted(found, key=lambda one: int(one["RANK"]))


def ran(directory: Path, *words: str, more: str = "", **environ: str) -> list[dict[str, str]]:
    """Return what the processes of a script that ends well were told."""
    (directory / "train.py").write_text(SAYS + more)
    found = torchrun(directory, *words, **environ)
    assert found.returncode == 0, found.stdout + found.stderr
    return said(directory)


@pytest.mark.parametrize(
    ("words", "environ", "size"),
    [
        pytest.param("--nproc_per_node=3 train.py a --b", {}, 3, id="number"),
        pytest.param("train.py a --b", {}, 1, id="default"),
        pytest.param("--standalone --nproc-per-node 2 train.py a --b", {}, 2, id="standalone"),
        pytest.param("--nproc-per-node 2 -m train a --b", {}, 2, id="module"),
        pytest.param("--no-python sh train.sh a --b", {"PET_NPROC_PER_NODE": "2"}, 2, id="bash"),
        pytest.param(
            "--node_rank=0 --master_addr=127.0.0.1 --master_port=29511 --nnodes=1 "
            "--nproc_per_node=2 --monitor_interval=1 --start_method=spawn train.py a --b",
            {},
            2,
            id="old",
        ),
        pytest.param(
            "train.py a --b",
            {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "r7", "PET_ROLE": "x"},
            2,
            id="variables",
        ),
        pytest.param("--nnodes=2 --nproc-per-node=1 train.py a --b", {}, 2, id="nodes"),
        pytest.param("--nnodes=1:2 --nproc-per-node=2 train.py a --b", {}, 4, id="elastic"),
    ],
)
def test_so_many_processes_run_with_their_words(
    tmp_path: Path, words: str, environ: dict[str, str], size: int
) -> None:
    (tmp_path / "train.sh").write_text(f'exec {sys.executable} train.py "$@"\n')
    told = ran(tmp_path, *words.split(), **environ)

    assert [one["RANK"] for one in told] == [str(rank) for rank in range(size)]
    assert {one["WORLD_SIZE"] for one in told} == {str(size)}
    assert {one["words"] for one in told} == {"a --b"}
    assert {one["TORCHELASTIC_RUN_ID"] for one in told} == {
        environ.get("PET_RDZV_ID", _name(words))
    }
    assert {one["ROLE_NAME"] for one in told} == {environ.get("PET_ROLE", "default")}


def _name(words: str) -> str:
    return "sh" if "--no-python" in words else "train"


def test_defaults_of_the_environment_are_torchruns_and_give_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    for name in defaults:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "given").mkdir()
    (tmp_path / "alone").mkdir()
    two = ran(tmp_path, "--nproc-per-node=2", "train.py")
    given = ran(
        tmp_path / "given", "--nproc-per-node=2", "train.py", **dict.fromkeys(defaults, "3")
    )
    (alone,) = ran(tmp_path / "alone", "train.py")

    assert [[one[name] for name in defaults] for one in two] == [["1", "1"]] * 2
    assert [[one[name] for name in defaults] for one in given] == [["3", "3"]] * 2
    assert "OMP_NUM_THREADS" not in alone


def test_a_worker_that_fails_is_started_again_and_counted(tmp_path: Path) -> None:
    fails = """
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] != "1":
    raise ValueError("it is the first time")
"""
    ran(tmp_path, "--nproc-per-node=2", "--max-restarts=1", "train.py", more=fails)

    assert [one["RANK"] for one in said(tmp_path, restarts=1)] == ["0", "1"]
    assert {one["TORCHELASTIC_MAX_RESTARTS"] for one in said(tmp_path, restarts=1)} == {"1"}


def test_what_record_writes_of_a_failure_is_shown(tmp_path: Path) -> None:
    script = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise RuntimeError("of rank " + os.environ["RANK"])
main()
"""
    (tmp_path / "train.py").write_text(SAYS + script)
    found = torchrun(tmp_path, "train.py")

    assert found.returncode == 1
    assert all(Path(one["TORCHELASTIC_ERROR_FILE"]).name for one in said(tmp_path))
    assert "rank 0 (r1) exited with code 1: RuntimeError: of rank 0" in found.stderr


def test_torch_knows_that_it_was_launched_and_meets_by_either_method(tmp_path: Path) -> None:
    meets = """
import torch
import torch.distributed as dist
assert dist.is_torchelastic_launched()
where = "tcp://" + os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
by_address = {"init_method": where, "rank": int(os.environ["RANK"]), "world_size": 2}
dist.init_process_group("gloo", **(by_address if sys.argv[1] == "tcp" else {}))
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
assert total.item() == 3
dist.destroy_process_group()
"""
    for way in ("env", "tcp"):
        (tmp_path / way).mkdir()
        told = ran(tmp_path / way, "--nproc-per-node=2", "train.py", way, more=meets)
        assert len(told) == 2


@pytest.mark.parametrize(
    ("words", "files", "shown"),
    [
        ("--redirects=3", {"0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"}, set()),
        ("--tee=0:1", {"0/stdout.log"}, {"[default0]:printed by 0", "printed by 1"}),
        ("--local-ranks-filter=1", set(), {"printed by 1", "complained by 1"}),
    ],
)
def test_what_is_printed_goes_where_the_flags_say(
    tmp_path: Path, words: str, files: set[str], shown: set[str]
) -> None:
    (tmp_path / "train.py").write_text(SAYS)
    found = torchrun(tmp_path, "--nproc-per-node=2", words, "--log-dir=logs", "train.py")

    written = {str(one.relative_to(one.parents[1])) for one in tmp_path.glob("logs/*/*/*/*.log")}
    assert written == files
    printed = "".join(one.read_text() for one in tmp_path.glob("runs/*/logs/r*.log"))
    lines = {line for line in printed.splitlines() if "printed by" in line or "complained" in line}
    assert shown <= lines
    assert not any(line.endswith("by 0") for line in lines) or "0" in words
    assert found.returncode == 0


def test_a_signal_to_the_launcher_ends_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAYS + "import time\ntime.sleep(1000)\n")
    command = [sys.executable, "-c", "from pliant.cli.torchrun import main; main()"]
    launcher: Any = subprocess.Popen(
        [*command, "--nproc-per-node=2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = psutil.Process(launcher.pid)
        while len(list(tmp_path.glob("rank-*"))) < 2:
            assert until.is_running()
            assert launcher.poll() is None
            time.sleep(0.05)
        started = until.children(recursive=True)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) != 0
        _, alive = psutil.wait_procs(started, timeout=10)
        assert not alive
    finally:
        launcher.kill()
        launcher.wait()
