"""What a command line of torchrun means: each flag is taken, of no consequence, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pliant.cli.torchrun import FLAGS, plan
from pliant.core.errors import ConfigError

SCRIPT = ("train.py", "--lr", "0.1")


def planned(*words: str, accelerators: int = 8, **environ: str) -> Any:
    return plan([*words, *SCRIPT], environ, accelerators=accelerators, cores=2)


def test_words_for_processes_count_what_the_host_has() -> None:
    def workers(said: str, accelerators: int) -> Any:
        found = planned("--nproc-per-node", said, accelerators=accelerators)
        return found.given["workers_per_replica"]

    assert [workers(said, 8) for said in ("auto", "gpu", "cpu", "3")] == [8, 8, 2, 3]
    assert [workers(said, 0) for said in ("auto", "cpu")] == [2, 2]
    with pytest.raises(ConfigError, match="gpu: this host shows no accelerator"):
        workers("gpu", 0)
    with pytest.raises(ConfigError, match="--nproc-per-node 0 must be at least 1"):
        workers("0", 8)


def test_every_flag_of_torchrun_is_in_the_table() -> None:
    run = pytest.importorskip("torch.distributed.run")
    theirs = {
        option
        for action in run.get_args_parser()._actions
        for option in action.option_strings
        if option.startswith("--") and "_" not in option
    } - {"--help"}

    ours = {name for flag in FLAGS for name in flag.names}
    assert theirs - ours == set()
    assert len(theirs) >= 31


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), {"min_replicas": 1, "max_replicas": 1, "workers_per_replica": 1, "max_restarts": 0}),
        (("--nnodes=2:4",), {"min_replicas": 2, "max_replicas": 4}),
        (("--standalone", "--nproc_per_node", "4"), {"workers_per_replica": 4, "max_replicas": 1}),
        (("--nproc-per-node", "auto"), {"workers_per_replica": 8}),
        (("--max-restarts", "3"), {"max_restarts": 3}),
        (("--shutdown-timeout", "90"), {"policy": {"gracefulShutdownTimeoutInSeconds": 90}}),
        (("--rdzv-id", "run7"), {"name": "run7"}),
        (
            ("--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1"),
            {"join": "10.0.0.1:29500", "nnodes": "2:4", "devices_per_node": 1},
        ),
        (
            ("--nnodes=2", "--master-addr=10.0.0.1", "--master-port=7000", "--local-addr=eth0"),
            {"join": "10.0.0.1:7000", "nnodes": "2:2", "interface": "eth0"},
        ),
    ],
)
def test_sizes_and_places_become_those_of_replicas(
    words: tuple[str, ...], given: dict[str, Any]
) -> None:
    found = planned(*words).given

    assert {name: found.get(name) for name in given} == given
    assert found["mode"] == "restart"


def test_a_variable_gives_what_no_flag_does() -> None:
    found = planned("--max-restarts", "1", PET_NNODES="1:3", PET_MAX_RESTARTS="9", PET_MODULE="1")

    assert (found.given["max_replicas"], found.given["max_restarts"]) == (3, 1)
    assert found.words == ["-m", *SCRIPT]


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ((), SCRIPT),
        (("-m",), ("-m", *SCRIPT)),
        (("--no-python",), ("--no-python", *SCRIPT)),
    ],
)
def test_a_script_a_module_and_a_program_run(words: tuple[str, ...], runs: tuple[str, ...]) -> None:
    assert planned(*words).words == list(runs)


def test_every_flag_is_on_the_page() -> None:
    page = Path(__file__).parents[2] / "docs/howto/run-scripts-as-they-are.md"
    text = page.read_text()

    missing = [flag.key for flag in FLAGS if f"`--{flag.key.replace('_', '-')}`" not in text]
    assert missing == []


def test_what_processes_print_where_they_are_told() -> None:
    found = planned("-r", "3", "--tee", "0:1,1:2", "--role", "trainer", "--log-dir", "logs")

    told = {"PET_REDIRECTS": "3", "PET_TEE": "0:1,1:2", "PET_ROLE": "trainer"}
    assert found.variables == {**told, "PET_LOG_DIR": "logs"}


def test_flags_without_a_consequence_are_named_with_the_reason() -> None:
    found = planned("--monitor-interval", "5", "--node-rank", "1")

    assert found.idle == [
        "--monitor-interval (the end of a process is seen at once)",
        "--node-rank (ranks follow from who is there)",
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--run-path",), "--run-path is refused: processes are started by python itself"),
        (("--numa-binding", "node"), "--numa-binding is refused: bind the processes with numactl"),
        (
            ("--virtual-local-rank",),
            "--virtual-local-rank is refused: start each process on a node",
        ),
        (("--logs-specs", "x"), "--logs-specs is refused: logs go where"),
        (("--event-log-handler", "x"), "--event-log-handler is refused: events are in"),
        (("--duplicate-stdout-filters", "x"), "--duplicate-stdout-filters is refused: filter what"),
        (
            ("--signals-to-handle", "SIGUSR1"),
            "--signals-to-handle SIGUSR1 is refused: pliant stops",
        ),
        (
            ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1"),
            "--rdzv-backend etcd is refused: hosts meet at one of them, not at etcd",
        ),
        (("-m", "--no-python"), "--no-python and --module contradict each other"),
        (("--nnodes", "4:2"), "--nnodes 4:2 must be MIN:MAX"),
        (("--max-restarts", "x"), "--max-restarts x must be a whole number"),
        (("--nproc-per-node", "many"), "--nproc-per-node many must be a whole number"),
        (("--unknown",), "unrecognized arguments|the following arguments"),
    ],
)
def test_what_is_refused_is_named(words: tuple[str, ...], sentence: str) -> None:
    pattern = sentence if "|" in sentence else re.escape(sentence)
    with pytest.raises(ConfigError, match=pattern):
        planned(*words)


def test_a_switch_in_the_environment_is_a_number() -> None:
    with pytest.raises(ConfigError, match="PET_STANDALONE=yes must be 1 or 0"):
        planned(PET_STANDALONE="yes")
