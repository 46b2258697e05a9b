"""What is refused outside of a script, with the sentence that a user reads.

Owns the tables of commands, files, runs, pools, checkpoints and the installation; what a script
does is in ``refusals``.  A row types a command, or calls what refuses, unless a test is named.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
from tests.checkpoint.states import plain_save
from tests.features.refusal import Refusal, Script

import pliant
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.starting_weights import write_starting_weights
from pliant.checkpoint.store.open import open_storage
from pliant.cli.arguments import number_of
from pliant.machine import device_locks, registry
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.pool.admin import PoolAdmin
from pliant.run import background, pool_host, run_directory
from pliant.run.pool_config import _named

LOG, LOGS = Path("run/events.jsonl"), Path("run/logs")


# --- what lies there, and what runs -------------------------------------------------


def written(path: str | Path, text: str = "") -> Script:
    """Return what writes a file."""

    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    return write


def began(**changes: Any) -> Script:
    """Return what leaves a run behind, in ``run``: that of ``x.py``, where nothing is."""

    def write() -> None:
        started = {
            "kind": "job_started",
            "at": 1.0,
            "job": "x",
            "policy": {"min": 1, "max": 1, "start": None},
            "command": ["x.py"],
            "cwd": "/",
            **changes,
        }
        written(LOG, json.dumps({"v": 1, **started}) + "\n")()

    return write


def ended(**changes: Any) -> Script:
    """Return what leaves a run behind that has finished."""

    def write() -> None:
        began(**changes)()
        with LOG.open("a") as log:
            log.write('{"v": 1, "kind": "job_ended", "at": 2.0, "exit_code": 0, "reason": ""}\n')

    return write


def printed(*names: str) -> Script:
    """Return what leaves a run whose replicas have printed something."""

    def write() -> None:
        written(LOG)()
        for name in names:
            written(LOGS / f"{name}.log")()

    return write


def runs(kind: str, name: str) -> Script:
    """Return what makes this process look like a job, or a pool, that does not answer."""

    def write() -> None:
        state = StateDirectory.of(os.environ)
        records = {"job": state.jobs, "pool": state.pools}[kind]
        files = RuntimeFiles.of(kind, name, records)
        files.write(url="http://127.0.0.1:1", token="t", out=Path("run"))

    return write


def unwritable() -> None:
    Path("file").touch()
    files = RuntimeFiles.of("job", "gpt", Path("file/jobs"))
    files.write(url="http://h", token="t", out=Path("run"))


def held_twice() -> None:
    Path("run").mkdir()
    held = run_directory.locked(Path("run"), alone=True)
    with held, run_directory.locked(Path("run"), alone=True):
        pass


def read_for_ever() -> None:
    with mock.patch.object(run_directory, "INITIAL_S", 0.0):
        run_directory.initial_weights("weights", Path())


def never_served() -> None:
    with mock.patch.object(background, "FOUND_S", 0.0), mock.patch("subprocess.Popen"):
        background.start(["this"], {}, log=Path("log"), find=lambda: None)


def other_shape() -> None:
    plain_save({"model": {"w": torch.zeros(3)}}, Path("theirs"))
    load(open_checkpoint(open_storage("theirs")), into={"model.w": torch.zeros(4)})


def no_tensor() -> None:
    plain_save({"count": 3}, Path("theirs"))
    write_starting_weights("theirs", Path("init.pt"))


def all_damaged() -> None:
    written("root/step-00000005-l1/pliant.json", "{")()
    write_starting_weights("root", Path("init.pt"))


def linked() -> None:
    Path("ml").symlink_to(".")
    device_locks.make_entered(Path("ml"), os.getegid())


def below_a_file() -> None:
    Path("file").touch()
    device_locks.make_entered(Path("file/ml"), os.getegid())


def open_to_all() -> None:
    place = Path("ml")
    device_locks.make_entered(place, os.getegid())
    with registry.listen(place, os.getegid(), waiting=1):
        place.chmod(0o777)
        registry.shared_pool("ml", Path())


def no_place() -> None:
    Path("file").touch()
    config = SimpleNamespace(records=Path("file/pools"), name="ml", gid=os.getegid())
    pool_host.make_directory(cast(Any, config))


def private_in_shared() -> None:
    device_locks.make_entered(Path("ml"), os.getegid())
    config = SimpleNamespace(records=Path(), name="ml", gid=None)
    pool_host.make_directory(cast(Any, config))


def called_otherwise() -> None:
    claim = SimpleNamespace(name="ada/gpt", devices=[0])
    _named(("cuda:1",), cast(Any, SimpleNamespace(claims=[claim], names=("cuda:0",))))


def set_among_names() -> None:
    driver = SimpleNamespace(follows="", saved=SimpleNamespace(names=("cuda:0",)))
    asyncio.run(PoolAdmin(cast(Any, driver)).set_devices(3))


# --- the tables -----------------------------------------------------------------------

SIZES = [
    Refusal(
        sentence="--steps 2 must be at least 4",
        when="a script is to be checked in too few steps for something to happen in the middle",
        instead="more steps, or no `--steps`: 20",
        command="check --steps 2 train.py",
    ),
    Refusal(
        sentence="--workers-per-replica 0 must be at least 1",
        when="a script is to be checked with replicas of no worker",
        instead="as many as one replica has",
        command="check --workers-per-replica 0 train.py",
    ),
    Refusal(
        sentence="--link data does not exist",
        when="what a check is not to copy is not there",
        instead="its path, from the working directory",
        command="check --link data train.py",
    ),
    Refusal(
        sentence="/home/me/project holds more than 1 GiB, and each history has a copy: name what "
        "the script only reads in it, as --link data",
        when="a script is checked in a directory with much data",
        instead="`pliant check --link data train.py`",
        proof="tests/run/test_check.py::test_a_directory_that_is_too_large_is_refused",
    ),
    Refusal(
        sentence="--policy: spares must be at least 0, not -1",
        when="a number of the policy is too small, or none",
        instead="a number in range",
        command="run --policy spares=-1 train.py",
    ),
    Refusal(
        sentence="--policy: replaceSlowAfterInSeconds needs spares, of which one takes the place "
        "of a slow replica; give spares=1 as well",
        when="slow replicas are to be replaced, and there is no spare",
        instead="`--policy spares=1`",
        command="run --policy replaceSlowAfterInSeconds=300 train.py",
    ),
    Refusal(
        sentence="--policy: gracefulShutdownTimeoutInSeconds must be more than 0",
        when="replicas are to go without notice",
        instead="a time above 0; `pliant kill` ends one at once",
        command="run --policy gracefulShutdownTimeoutInSeconds=0 train.py",
    ),
    Refusal(
        sentence="--policy: minMarginalEfficiency must be at most 1, not 2",
        when="a further replica is to add more than one replica does",
        instead="a share from 0 to 1",
        command="run --policy minMarginalEfficiency=2 train.py",
    ),
    Refusal(
        sentence="--policy: backoff.initialInSeconds 100 is greater than backoff.maxInSeconds 10",
        when="the first wait is longer than the longest",
        instead="initialInSeconds <= maxInSeconds <= resetAfterInSeconds",
        command="run --policy backoff.initialInSeconds=100 --policy backoff.maxInSeconds=10 "
        "train.py",
    ),
    Refusal(
        sentence="--policy: backoff.maxInSeconds 9000 is greater than backoff.resetAfterInSeconds "
        "1800, after which nothing waits any more",
        when="the longest wait is longer than waits are remembered",
        instead="initialInSeconds <= maxInSeconds <= resetAfterInSeconds",
        command="run --policy backoff.maxInSeconds=9000 train.py",
    ),
    Refusal(
        sentence="--policy: replicaDiscreteValues 4, 2 must ascend",
        when="sizes are not in order, or one is there twice",
        instead="`replicaDiscreteValues=2,4`",
        command="run --policy replicaDiscreteValues=4,2 train.py",
    ),
    Refusal(
        sentence="--policy: minReplicas 1 is not the smallest of replicaDiscreteValues 2, 4",
        when="the minimum is none of the sizes",
        instead="`--min 2`, or 1 among the sizes",
        command="run --min 1 --policy replicaDiscreteValues=2,4 train.py",
    ),
    Refusal(
        sentence="--policy: replicaDiscreteValues 8 is greater than maxReplicas 4",
        when="a size is above the maximum",
        instead="a larger `--max`, or leave that size out",
        command="run --max 4 --policy replicaDiscreteValues=1,8 train.py",
    ),
    Refusal(
        sentence="replicaDiscreteValues 1 is less than minReplicas 2",
        when="a size is below the minimum",
        instead="a smaller `--min`, or leave that size out",
        proof="tests/core/policy/test_decide.py::test_contradicting_bounds_are_refused",
    ),
    Refusal(
        sentence="startReplicas 3 is none of replicaDiscreteValues 1, 2, 4",
        when="a job is to start with a size that it may not have",
        instead="`--start 2`",
        command="run --start 3 --policy replicaDiscreteValues=1,2,4 train.py",
    ),
    Refusal(
        sentence="backoff.factor and backoff are both given",
        when="a part of a field is set, and the whole",
        instead="one of them",
        command="run --policy backoff=3 --policy backoff.factor=3 train.py",
    ),
    Refusal(
        sentence="spares is given twice",
        when="a field is set twice",
        instead="once",
        command="run --policy spares=1 --policy spares=2 train.py",
    ),
    Refusal(
        sentence="--limit: startInSeconds must be more than 0, not 0",
        when="a limit is no time",
        instead="a time above 0",
        command="run --limit startInSeconds=0 train.py",
    ),
]

OVER_HOSTS = """apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {{name: gpt}}
spec:
  command: [train.py]
  workersPerReplica: 8
  {}
"""

WRITTEN = [
    Refusal(
        sentence="job.yaml line 1 is not valid YAML: found unexpected end of stream",
        when="a quotation mark or a bracket is missing",
        instead="mend the line",
        command="run job.yaml",
        before=written("job.yaml", 'kind: "'),
    ),
    Refusal(
        sentence="job.yaml is not valid YAML: month must be in 1..12 ... ",
        when="a value looks like a date and is none",
        instead="put it into quotation marks",
        command="run job.yaml",
        before=written("job.yaml", "kind: 2026-13-01"),
    ),
    Refusal(
        sentence="job.yaml cannot be read: it is no UTF-8 text",
        when="the file is in another encoding, or no text",
        instead="save it as UTF-8",
        command="run job.yaml",
        before=lambda: Path("job.yaml").write_bytes(b"\xff\xfe"),
    ),
    Refusal(
        sentence="job.yaml line 4: hostsPerReplica 3 does not divide workersPerReplica 8: each "
        "host of a replica has as many of its workers as the others",
        when="a job file asks for workers that cannot be divided evenly over hosts",
        instead="a divisor",
        command="run job.yaml",
        before=written("job.yaml", OVER_HOSTS.format("hostsPerReplica: 3")),
    ),
    Refusal(
        sentence="job.yaml line 4: a pool is of one host; leave out either pool or "
        "hostsPerReplica 2",
        when="a job file asks for a pool, and for replicas of several hosts",
        instead="one of the two",
        command="run job.yaml",
        before=written("job.yaml", OVER_HOSTS.format("hostsPerReplica: 2\n  pool: {name: lab}")),
    ),
]

RUNS = [
    Refusal(
        sentence="run already holds a run; choose another --out or remove it",
        when="`--out` is the directory of a run",
        instead="another `--out`; `--resume` to go on with it",
        command="run --out run train.py",
        before=began(),
    ),
    Refusal(
        sentence="runs/train holds no run to resume; leave out --resume to start one, or say "
        "where it is with --out",
        when="`--resume`, and nothing of this name has run here",
        instead="`--resume --out DIR`",
        command="run --resume train.py",
    ),
    Refusal(
        sentence="run holds no run to resume; leave out --resume to start one",
        when="`--resume --out` names another directory",
        instead="the directory of the run",
        command="run --resume --out run train.py",
    ),
    Refusal(
        sentence="--from-checkpoint never begins anew, and --resume goes on; leave out one of them",
        when="both are given",
        instead="one of them",
        command="run --from-checkpoint never --resume train.py",
    ),
    Refusal(
        sentence="--from-checkpoint x must be one of auto, anyway, never",
        when="it is another word",
        instead="one of the three",
        command="run --from-checkpoint x train.py",
    ),
    Refusal(
        sentence="--balance x must be one of even, speed",
        when="it is another word",
        instead="one of the two",
        command="run --balance x train.py",
    ),
    Refusal(
        sentence="--placement: 'even' must be one of free, spread, pack, the last two with the "
        "label to go by if that is not the host, such as spread:rack",
        when="it is another word",
        instead="one of the three",
        command="run --placement even train.py",
    ),
    Refusal(
        sentence="there is no run to resume here; name its directory",
        when="`pliant resume` finds none",
        instead="`pliant resume DIR`",
        command="resume",
    ),
    Refusal(
        sentence="a and --job b both say what goes on; leave out one",
        when="`pliant resume` is told twice",
        instead="`pliant resume a`",
        command="resume a --job b",
    ),
    Refusal(
        sentence="job gpt: finished after 9 steps; nothing is left to do",
        when="`pliant resume` names a job that cannot go on; the sentence says why",
        instead="what the sentence says",
        proof="tests/observe/test_runs.py::test_what_cannot_go_on_says_why",
    ),
    Refusal(
        sentence="run does not say what ran there; use pliant run --resume --out run",
        when="the beginning of its events is gone",
        instead="the command that it was started with, and `--resume`",
        command="resume run",
        before=written(LOG),
    ),
    Refusal(
        sentence="the run in ... has finished, after 0 steps; to train longer, put the script with "
        "other arguments behind --",
        when="`pliant resume` names a run that came to its end",
        instead="`pliant run` for another",
        command="resume run",
        before=ended(),
    ),
    Refusal(
        sentence="/gone/for/ever, where the run began, cannot be entered: No such file or "
        "directory; call this where its script is",
        when="the directory that it was started in is gone, and its script is not here",
        instead="`pliant resume` where the script is",
        command="resume run",
        before=began(cwd="/gone/for/ever"),
    ),
    Refusal(
        sentence="the script x.py is no longer in /",
        when="the script is gone",
        instead="bring it back",
        command="resume run",
        before=began(),
    ),
    Refusal(
        sentence="the module x.y is no longer in /",
        when="the same where it was run with `-m`",
        instead="bring it back",
        command="resume run",
        before=began(command=["-m", "x.y"]),
    ),
    Refusal(
        sentence="a job named gpt is running already; choose another with --name",
        when="another job has this name",
        instead="`--name`",
        command="run --name gpt train.py",
        before=runs("job", "gpt"),
    ),
    Refusal(
        sentence="the job of run is running already; see pliant status",
        when="a run is resumed that has not ended",
        instead="`pliant status`",
        script=held_twice,
    ),
    Refusal(
        sentence="--init weights: weights/.metadata cannot be read: it does not exist",
        when="`--init` names no checkpoint, or one that cannot be read; the sentence says why",
        instead="a checkpoint, or what `session.save` wrote",
        proof="tests/cli/test_start.py::"
        "test_a_checkpoint_to_begin_with_that_is_none_leaves_no_directory",
    ),
    Refusal(
        sentence="--init weights was not read within 0 s",
        when="a checkpoint to begin with takes longer than an hour to read",
        instead="a copy of it that is nearer",
        script=read_for_ever,
    ),
    Refusal(
        sentence="what was started in the background did not answer within 0 s; log has its output",
        when="`--detach`: a job or a pool in the background does not begin in time",
        instead="what the log says",
        script=never_served,
    ),
    Refusal(
        sentence="file/jobs cannot be written: Not a directory",
        when="where running jobs are listed cannot be written to",
        instead="another `XDG_STATE_HOME`",
        script=unwritable,
    ),
]

JOBS = [
    Refusal(
        sentence="job gpt does not run: killed after 7 steps (pliant resume gpt)",
        when="`--job` names one that has ended",
        instead="what the sentence says",
        proof="tests/observe/test_runs.py::"
        "test_a_run_whose_process_is_gone_was_killed_and_never_shows_as_training",
    ),
    Refusal(
        sentence="job gpt: killed after 7 steps; its files are no longer in runs/gpt",
        when="a run's directory was moved, or another run lies there",
        instead="`--out` with the directory where it is now",
        proof="tests/observe/test_runs.py::"
        "test_a_directory_that_holds_another_run_now_is_not_taken_for_it",
    ),
    Refusal(
        sentence="job gpt: it is running; see pliant status",
        when="`pliant resume` names one that runs",
        instead="`pliant stop`, if it is to begin anew",
        proof="tests/observe/test_runs.py::test_what_runs_is_not_resumed",
    ),
    Refusal(
        sentence="job gpt: failed after 1 step, without checkpoints (Session(checkpoint=...)): it "
        "cannot go on, but begin again at step 0 with pliant resume /home/ada/runs/gpt",
        when="`pliant resume` names one that kept no checkpoint",
        instead="start it anew; with `Session(checkpoint=...)` the next one can go on",
        proof="tests/observe/test_runs.py::test_what_cannot_go_on_says_why",
    ),
    Refusal(
        sentence="job gpt: killed after 7 steps; start its coordinator again as it was started",
        when="`pliant resume` names one whose replicas may still train elsewhere",
        instead="the same `pliant coordinator` again",
        proof="tests/observe/test_runs.py::"
        "test_a_coordinator_that_was_killed_is_not_resumed_while_its_replicas_may_train",
    ),
    Refusal(
        sentence="the job refused the request with HTTP status 500",
        when="a job or a pool answers without a sentence",
        instead="its log: `pliant logs`, `events.jsonl`",
        proof="tests/cli/test_main.py::test_an_answer_that_is_no_sentence_names_its_status",
    ),
    Refusal(
        sentence="job gpt does not answer at http://127.0.0.1:1: Connection refused",
        when="a job, or a pool, is there and cannot be reached",
        instead="the command again; `pliant ls`",
        command="scale 2 --job gpt",
        before=runs("job", "gpt"),
    ),
    Refusal(
        sentence="no coordinator answers at http://127.0.0.1:1: Connection refused; the job has "
        "ended, or trains on until one is there again: start it with the same words, or name its "
        "place in --join",
        when="a command with `--join` finds nobody at the place",
        instead="the coordinator's command again; `pliant doctor --join`",
        proof="tests/cli/test_which_job.py::test_nobody_at_the_place_is_one_sentence",
    ),
    Refusal(
        sentence="gpu1.invalid is not known on this host: Name or service not known; give --join "
        "its address",
        when="a command with `--join` names a host that cannot be looked up here",
        instead="the address of the coordinator's `--listen`",
        proof="tests/cli/test_which_job.py::"
        "test_a_name_that_is_not_known_here_says_nothing_of_the_job",
    ),
    Refusal(
        sentence="no replica has printed anything yet (looked in run/logs)",
        when="`pliant logs` has nothing to show",
        instead="the command again, later",
        command="logs --out run",
        before=printed(),
    ),
    Refusal(
        sentence="there is no output of r9; there is of r1, r2",
        when="`pliant logs` names another replica",
        instead="`pliant logs r1`",
        command="logs r9 --out run",
        before=printed("r1", "r2"),
    ),
    Refusal(
        sentence="nothing that r3 printed is here yet; it runs on gpu2",
        when="`pliant logs` names a replica that runs, and no line of it has come: a host that "
        "does not see the directory of the run sends them once a second",
        instead="the command again, later; on that host its lines are in `logs` below `runs/`",
        proof="tests/observe/test_printed.py::"
        "test_whose_output_has_not_come_is_said_to_be_where_it_runs",
    ),
    Refusal(
        sentence="say whose output: r1, r2",
        when="`pliant logs`, and several have printed something",
        instead="`pliant logs r1`",
        command="logs --out run",
        before=printed("r1", "r2"),
    ),
]

CHECKPOINTS = [
    Refusal(
        sentence="checkpoint step-00000004-l1 of kept was written by train.py --steps 9, and this "
        "is another script: tune.py --steps 9; give this run a place of its own, go on all the "
        "same with --from-checkpoint anyway, or begin anew with --from-checkpoint never (a script "
        "that runs alone: PLIANT_FROM_CHECKPOINT=anyway)",
        when="checkpoints of another run lie where the script keeps its own",
        instead="another place, or `--from-checkpoint`",
        proof="tests/engine/test_checkpointing.py::"
        "test_what_another_run_wrote_is_not_gone_on_from_unless_asked",
    ),
    Refusal(
        sentence="milestones=0 must be at least 1 step apart",
        when="`pliant.Checkpoint` is to keep every 0th step",
        instead="a number of steps",
        script=lambda: pliant.Checkpoint("kept", milestones=0),
    ),
    Refusal(
        sentence="theirs/x was never finished: it has no pliant.json",
        when="a checkpoint is read that was being written when its job died",
        instead="the one before",
        proof="tests/checkpoint/test_catalogue.py::test_an_unfinished_checkpoint_cannot_be_opened",
    ),
    Refusal(
        sentence="model.w is float32 [3] in ... and float32 [4] here",
        when="a checkpoint is read into tensors of another shape or type",
        instead="tensors as the checkpoint has them",
        script=other_shape,
    ),
    Refusal(
        sentence="... holds no tensor",
        when="`--init` names a checkpoint without weights",
        instead="one of a model",
        script=no_tensor,
    ),
    Refusal(
        sentence="every checkpoint in root is damaged: ... ",
        when="`--init` names a place of which nothing can be read",
        instead="`pliant checkpoint verify`; another place",
        script=all_damaged,
    ),
    Refusal(
        sentence="root holds no tensors under 'model'; it has net",
        when="`pliant checkpoint export` of a checkpoint that calls its model otherwise",
        instead="`--under net`",
        proof="tests/checkpoint/test_compare_and_export.py::"
        "test_a_foreign_checkpoint_can_be_exported",
    ),
    Refusal(
        sentence="z is complex128, which safetensors does not have",
        when="`pliant checkpoint export` of such a tensor",
        instead="convert it in the script before it is saved",
        proof="tests/checkpoint/test_compare_and_export.py::"
        "test_a_type_that_safetensors_lacks_is_named",
    ),
    Refusal(
        sentence="pliant checkpoint export needs safetensors: pip install 'pliant[export]'",
        when="`pliant checkpoint export` without the library",
        instead="install it",
        proof="tests/checkpoint/test_compare_and_export.py::"
        "test_without_the_library_one_sentence_says_what_to_install",
    ),
    Refusal(
        sentence="theirs/.metadata holds more than tensors and plain values, and reading it may "
        "run code of whoever wrote it; allow it with --trust if you know them",
        when="a foreign checkpoint could run code when it is read",
        instead="`--trust`, if you know who wrote it",
        proof="tests/cli/test_checkpoint_commands.py::"
        "test_what_needs_trust_is_refused_until_it_is_given",
    ),
    Refusal(
        sentence=". holds no checkpoint",
        when="`pliant checkpoint` is given another place",
        instead="where the script keeps them",
        command="checkpoint verify .",
    ),
    Refusal(
        sentence="'s3://' names no place to keep checkpoints",
        when="a URL ends after its scheme",
        instead="`s3://bucket/path`",
        command="checkpoint ls s3://",
    ),
    Refusal(
        sentence="magic://x cannot be opened: Protocol not known: magic",
        when="a URL has a scheme that fsspec does not know, or an option does not fit",
        instead="a path, `s3://`, `gs://` or another of fsspec's",
        command="checkpoint ls magic://x",
    ),
    Refusal(
        sentence="gs:// needs another package: pip install gcsfs",
        when="the package of a store is not installed",
        instead="install it",
        proof="tests/checkpoint/store/test_base.py::test_a_place_that_cannot_be_is_refused",
    ),
    Refusal(
        sentence="--option 'x' is not KEY=VALUE, for instance timeout_s=30",
        when="an option of a store has no value",
        instead="`--option KEY=VALUE`",
        command="checkpoint ls . --option x",
    ),
    Refusal(
        sentence="encryption='AES256' is for s3://, not for .",
        when="a directory is to be encrypted by the server",
        instead="leave it out",
        command="checkpoint ls . --option encryption=AES256",
    ),
    Refusal(
        sentence='encryption \'x\' is not known; it is "AES256" or "aws:kms"',
        when="`encryption=` is another word",
        instead="one of the two",
        command="checkpoint ls . --option encryption=x",
    ),
    Refusal(
        sentence='encryption_key is of use only with encryption="aws:kms"',
        when="a key is given for another encryption, or for none",
        instead='`encryption="aws:kms"`',
        command="checkpoint ls . --option encryption_key=x",
    ),
    Refusal(
        sentence="timeout_s=0 must be more than 0",
        when="a store gets no time to answer",
        instead="a time above 0",
        command="checkpoint ls . --option timeout_s=0",
    ),
    Refusal(
        sentence="keep=0 must be at least 1",
        when="`pliant checkpoint prune` is to keep none",
        instead="`rm` removes all of them",
        command="checkpoint prune . --keep 0",
    ),
    Refusal(
        sentence="--milestones 'x' is neither N nor N,N,...",
        when="milestones are no numbers",
        instead="`--milestones 1000`",
        command="checkpoint prune . --milestones x --keep 1",
    ),
    Refusal(
        sentence="--milestones '0': steps begin at 1",
        when="a milestone is below 1",
        instead="a step from 1",
        command="checkpoint prune . --milestones 0 --keep 1",
    ),
    Refusal(
        sentence="kept belongs to another job: job gpt (process 4711 ... ; give this job a "
        "place of its own, or end that one (if it is gone for good, remove "
        "kept/lease.json)",
        when="two jobs keep checkpoints in one place",
        instead="a place for each",
        proof="tests/checkpoint/lease/test_holder.py::"
        "test_a_second_job_is_told_who_holds_it_and_what_to_do",
    ),
    Refusal(
        sentence="theirs/.metadata names posix.mkdir, which no index needs; reading it may "
        "run code of whoever wrote it, allow that with --trust if you know them",
        when="the index of a foreign checkpoint could run code",
        instead="`--trust`, if you know who wrote it",
        proof="tests/checkpoint/dcp/test_index.py::"
        "test_a_pickle_that_runs_something_is_refused_and_named",
    ),
]

QUOTAS = """\
apiVersion: pliant.dev/v1alpha1
kind: Pool
spec:
  teams:
    - {name: a, quota: 3}
    - {name: b, quota: 3}
"""

POOLS = [
    Refusal(
        sentence="--devices 'x' is neither a number nor a list such as cuda:0-3 or cpu:0-3,4-7",
        when="`pliant pool start --devices` is something else",
        instead="`--devices 8`, `--devices cuda:0-3`",
        command="pool start --devices x",
    ),
    Refusal(
        sentence="--devices 'cpu:3-1': 3-1 ends before it begins",
        when="a range goes backwards",
        instead="`cpu:1-3`",
        command="pool start --devices cpu:3-1",
    ),
    Refusal(
        sentence="--devices 'cuda:0-99999': 0-99999 is more than 4096",
        when="a range is too long",
        instead="the devices that are there",
        command="pool start --devices cuda:0-99999",
    ),
    Refusal(
        sentence="--devices 'cuda:0,0': cuda 0 is in two devices",
        when="a device is named twice",
        instead="once",
        command="pool start --devices cuda:0,0",
    ),
    Refusal(
        sentence="--devices 'cpu:x': x is neither a core nor cores like 0-3",
        when="a device of cores is called otherwise",
        instead="`cpu:0-3,4-7`",
        command="pool start --devices cpu:x",
    ),
    Refusal(
        sentence="--devices 'cuda:/': '/' is no name of a device",
        when="a name has other letters, or none",
        instead="`cuda:0`",
        command="pool start --devices cuda:/",
    ),
    Refusal(
        sentence="--devices cpu:4094: core 4094 is not one of this machine's",
        when="there is no such core, or not for this process",
        instead="cores that `nproc` counts",
        command="pool start --devices cpu:4094",
    ),
    Refusal(
        sentence="pool.yaml line 4: spec.devices cpu:4094: core 4094 is not one of this machine's",
        when="the same in the file of a pool, in which each of these sentences begins like this",
        instead="cores that `nproc` counts",
        before=written("pool.yaml", QUOTAS.partition("  teams")[0] + "  devices: cpu:4094\n"),
        command="pool start --config pool.yaml",
    ),
    Refusal(
        sentence="pool.yaml line 4: spec.devices must be a whole number, or a list such as "
        "cuda:0-3, not 8.5",
        when="`devices` in the file of a pool is neither",
        instead="`devices: 8`, `devices: cuda:0-3`",
        before=written("pool.yaml", QUOTAS.partition("  teams")[0] + "  devices: 8.5\n"),
        command="pool start --config pool.yaml",
    ),
    Refusal(
        sentence="pool.yaml line 5: team a has a borrowLimit of 3 but no quota that it could "
        "exceed; give it a quota",
        when="a team may borrow beyond nothing",
        instead="`quota`",
        before=written("pool.yaml", QUOTAS.replace("quota: 3", "borrowLimit: 3", 1)),
        command="pool start --config pool.yaml",
    ),
    Refusal(
        sentence="pool.yaml line 3: team a lets class vip reclaim, which does not exist; classes "
        "are high, low, normal, urgent",
        when="`reclaim.by` in the file of a pool names none",
        instead="one of those, or one of `priorityClasses`",
        before=written("pool.yaml", QUOTAS.replace("quota: 3", "reclaim: {by: [vip]}", 1)),
        command="pool start --config pool.yaml",
    ),
    Refusal(
        sentence="t.csv line 1: '5'; expected milliseconds,add|remove,node or time_s,devices",
        when="a line of a trace has neither form",
        instead="one of the two",
        before=written("t.csv", "5\n"),
        command="pool start --capacity trace:t.csv",
    ),
    Refusal(
        sentence="the quotas 3 (vision) are more than the pool's 2 devices; lower one or give the "
        "pool more: they were set before (in state.json); begin without them with --forget",
        when="a pool is started again with fewer devices than quotas that were set in it",
        instead="more `--devices`, or `--forget`",
        proof="tests/pool/test_live.py::test_quotas_and_classes_outlive_an_orderly_end",
    ),
    Refusal(
        sentence="--devices 0 must be between 1 and 100000",
        when="a pool is to have none, or too many",
        instead="a number in range",
        command="pool start --devices 0",
    ),
    Refusal(
        sentence="--time-scale is for --capacity trace:FILE",
        when="there is no trace to play faster",
        instead="leave it out",
        command="pool start --time-scale 2",
    ),
    Refusal(
        sentence="--time-scale 0 must be a number above 0",
        when="a trace is to be played at no speed",
        instead="a number above 0",
        command="pool start --capacity trace:x --time-scale 0",
    ),
    Refusal(
        sentence="--capacity 'weather' is neither file:PATH nor trace:FILE",
        when="`--capacity` is something else",
        instead="one of the two",
        command="pool start --capacity weather",
    ),
    Refusal(
        sentence="n.txt holds 'many'; expected a number of devices, such as 8",
        when="the file of `--capacity` holds something else",
        instead="a number",
        command="pool start --capacity file:n.txt",
        before=written("n.txt", "many"),
    ),
    Refusal(
        sentence="t.csv is an empty trace; expected milliseconds,add|remove,node or time_s,devices",
        when="a trace has no line",
        instead="a line for each change",
        command="pool start --devices 4 --capacity trace:t.csv",
        before=written("t.csv"),
    ),
    Refusal(
        sentence="t.csv line 2: '5,gone,b'; expected milliseconds,add|remove,node",
        when="a line of a trace has another form",
        instead="the form that it names",
        command="pool start --devices 4 --capacity trace:t.csv",
        before=written("t.csv", "0,add,a\n5,gone,b\n"),
    ),
    Refusal(
        sentence="t.csv line 2: '-1' is no time; expected time_s,devices",
        when="a time of a trace is none",
        instead="seconds from 0",
        command="pool start --devices 4 --capacity trace:t.csv",
        before=written("t.csv", "0,8\n-1,4\n"),
    ),
    Refusal(
        sentence="t.csv line 3: 3 s is before 9 s of the line above; a trace goes forward in time",
        when="the lines of a trace are out of order",
        instead="sort them",
        command="pool start --devices 4 --capacity trace:t.csv",
        before=written("t.csv", "0,8\n9,4\n3,5\n"),
    ),
    Refusal(
        sentence="the quotas 3 (a) + 3 (b) are more than the pool's 4 devices; lower one "
        "or give the pool more",
        when="quotas promise more than there is",
        instead="smaller quotas, or more devices",
        command="pool start --devices 4 --config pool.yaml",
        before=written("pool.yaml", QUOTAS),
    ),
    Refusal(
        sentence="a pool named default is running already; choose another with --name",
        when="there is one of this name",
        instead="`--name`",
        command="pool start --devices 1",
        before=runs("pool", "default"),
    ),
    Refusal(
        sentence="ada/gpt still has device 0, which is called otherwise now; start with the "
        "same devices, or end that claim first",
        when="a pool is started again with other names of devices",
        instead="the `--devices` of before",
        script=called_otherwise,
    ),
    Refusal(
        sentence="--capacity is one number, and the devices are of 2 kinds (cuda, cpu); start a "
        "pool for each kind",
        when="the capacity of a pool with several kinds is to follow something",
        instead="one pool per kind, with `--name`",
        proof="tests/run/test_pool_config.py::"
        "test_one_number_is_the_capacity_of_devices_of_one_kind",
    ),
    Refusal(
        sentence="pool default cannot run: state.json is no state of a pool ( ... ; move it away "
        "to begin anew, once no job of the pool runs",
        when="what a pool wrote down is damaged, or its disk is full",
        instead="what the sentence says",
        proof="tests/cli/test_pool_commands.py::test_a_pool_whose_state_is_damaged_says_what_to_do",
    ),
]

DECIDED = (
    "tests/core/allocation/test_decide.py::"
    "test_settings_that_contradict_are_errors_and_change_nothing"
)

UNMET = (
    "tests/core/allocation/test_decide.py::"
    "test_a_claim_that_can_never_be_met_is_refused_in_a_sentence"
)

TOLD = [
    Refusal(
        sentence="--team vision says how a job stands in a pool; add --pool",
        when="`--team`, `--priority` or `--kind` without a pool",
        instead="`--pool`",
        command="run --team vision train.py",
    ),
    Refusal(
        sentence="--pool My_Pool: a pool's name must be lower-case letters, digits and dashes, at "
        "most 63 of them",
        when="no pool can have this name",
        instead="a name that `pliant ls` shows",
        command="run --pool=My_Pool train.py",
    ),
    Refusal(
        sentence="no pool named lab is running; start it with pliant pool start --devices N --name "
        "lab",
        when="`--pool` names another",
        instead="the command that it proposes",
        command="run --pool lab train.py",
    ),
    Refusal(
        sentence="several pools are running, say which with --pool: a, b",
        when="a command does not say which of several pools it is about",
        instead="`--pool a`",
        proof="tests/cli/test_pool_commands.py::"
        "test_usage_is_of_the_pool_that_is_meant_and_says_which",
    ),
    Refusal(
        sentence="no pool is running; start one with pliant pool start --devices N",
        when="`pliant pool`, `claim` or `usage` has nobody to ask",
        instead="the command that it proposes",
        command="claim 1",
    ),
    Refusal(
        sentence="run holds no pool: it has no events.jsonl",
        when="`pliant explain --pool --out` names another directory",
        instead="the directory of the pool",
        command="explain --pool lab --out run",
    ),
    Refusal(
        sentence="a claim is of at least 1 device, not 0",
        when="`pliant claim 0`",
        instead="a number from 1",
        command="claim 0",
    ),
    Refusal(
        sentence="--devices -1 must be between 0 and 100000",
        when="`pliant pool set` gets no number of devices",
        instead="a number in range",
        command="pool set --devices -1",
    ),
    Refusal(
        sentence="--borrow-limit 3 counts from a quota; give --quota, too",
        when="`pliant pool set-team` limits borrowing of a team without a quota",
        instead="`--quota 0 --borrow-limit 3`",
        command="pool set-team vision --borrow-limit 3",
    ),
    Refusal(
        sentence="--quota 2 and --no-quota: leave out one of them",
        when="`pliant pool set-team` gives a number, and takes it away; `--borrow-limit` likewise",
        instead="one of the two",
        command="pool set-team vision --quota 2 --no-quota",
    ),
    Refusal(
        sentence="--by moon is none of team, user, job",
        when="`pliant usage --by` is another word",
        instead="one of the three",
        command="usage --by moon",
    ),
    Refusal(
        sentence="there is no device 'cuda:9'; there are cuda:0, cuda:1",
        when="`pliant pool cordon`, `uncordon` or `drain` names another",
        instead="a name or number of `pliant pool status`",
        script=lambda: number_of("cuda:9", cast(Any, two_devices())),
    ),
    Refusal(
        sentence="there is no device 8; there are 0 to 7",
        when="the same by number",
        instead="a number of `pliant pool status`",
        proof=DECIDED,
    ),
    Refusal(
        sentence="team b: reclaim.by names 'vip', which is no priority class; there are high, low, "
        "normal, urgent",
        when="`pliant pool set-team --by` names no class of the pool",
        instead="`pliant pool set-class` first",
        proof=DECIDED,
    ),
    Refusal(
        sentence="team a: a limit of 1 (quota 1, borrow_limit 0) is below the minimum of 2 of its "
        "claim mine; raise it to 2 or withdraw the claim",
        when="a team is to have less than its claims cannot do without",
        instead="a larger quota, or end the claim",
        proof=DECIDED,
    ),
    Refusal(
        sentence="there is no team 'zz' to remove; there are a, default",
        when="`pliant pool set-team --remove` names another",
        instead="a team of `pliant pool status`",
        proof=DECIDED,
    ),
    Refusal(
        sentence="team a still has claims: mine; withdraw them",
        when="a team is removed that uses devices",
        instead="`pliant pool release` for each",
        proof=DECIDED,
    ),
    Refusal(
        sentence="the team default cannot be removed; set another quota for it",
        when="it is removed",
        instead="`pliant pool set-team default --quota 0`",
        proof=DECIDED,
    ),
    Refusal(
        sentence="cy has released gpt",
        when="somebody who may has ended the claim",
        instead="ask who is named",
        proof="tests/pool/test_driver.py::"
        "test_what_is_left_of_a_released_claim_is_ended_after_its_notice",
    ),
    Refusal(
        sentence="claim gpt is refused: there is no priority class 'vip'; there are high, "
        "low, normal, urgent",
        when="`--priority` names no class of the pool",
        instead="a class that it names",
        proof=UNMET,
    ),
    Refusal(
        sentence="claim gpt is refused: there is no team 'c'; there are default, small",
        when="`--team` names no team of the pool",
        instead="a team that it names",
        proof=UNMET,
    ),
    Refusal(
        sentence="claim gpt is refused: it needs at least 9 devices, and the pool has 8",
        when="the minimum is more than there is",
        instead="fewer, `--min`",
        proof=UNMET,
    ),
    Refusal(
        sentence="claim gpt is refused: it needs at least 5 devices, and team small has a "
        "limit of 4 (quota 4, borrow_limit 0)",
        when="the minimum is more than the team may have",
        instead="another team, or a larger quota",
        proof=UNMET,
    ),
    Refusal(
        sentence="claim gpt is refused: there is no device of kind 'rocm'; there are cuda "
        "(3), cpu (2)",
        when="`--kind` names none of the pool",
        instead="a kind that it names",
        proof="tests/core/allocation/test_kinds.py::test_what_no_kind_can_meet_is_refused",
    ),
    Refusal(
        sentence="process 4711 has a claim named gpt already; choose another name",
        when="a name is taken",
        instead="`--name`",
        proof="tests/pool/test_driver.py::test_a_name_is_one_process",
    ),
    Refusal(
        sentence="process 4711 of claim gpt does not live here",
        when="a claim is made from another machine, or its process has ended",
        instead="`pliant claim` on the machine of the pool",
        proof="tests/pool/test_driver.py::test_a_process_that_does_not_live_here_has_no_claim",
    ),
    Refusal(
        sentence="the pool was started anew and waits for gpt; release gpt in a moment",
        when="`pliant pool release` before the pool knows who has what",
        instead="the same again",
        proof="tests/pool/test_driver.py::"
        "test_a_claim_is_not_released_before_the_pool_knows_of_it_again",
    ),
    Refusal(
        sentence="there is no claim no that could be released",
        when="`pliant pool release` names another",
        instead="a claim of `pliant pool status`",
        proof="tests/pool/test_driver.py::"
        "test_what_is_left_of_a_released_claim_is_ended_after_its_notice",
    ),
    Refusal(
        sentence="there is no device 4; they are 0 to 3",
        when="`pliant pool cordon`, `uncordon` or `drain` of another number",
        instead="a number of `pliant pool status`",
        proof="tests/pool/test_driver.py::"
        "test_what_people_wish_is_possible_or_refused_in_a_sentence",
    ),
    Refusal(
        sentence="the number of devices follows file:n.txt; change that",
        when="`pliant pool set`, and the pool was started with `--capacity`",
        instead="another number in that file",
        proof="tests/pool/test_live.py::test_capacity_follows_a_file",
    ),
    Refusal(
        sentence="the devices have names, and more of them would have none; cordon or drain some",
        when="`pliant pool set`, and the pool was started with names of devices",
        instead="`pliant pool cordon`; another `--devices` at its next start",
        script=set_among_names,
    ),
    Refusal(
        sentence="the pool cannot write its state: No space left on device",
        when="the disk of a pool is full; nobody gets anything meanwhile",
        instead="make room: it goes on by itself",
        proof="tests/pool/test_driver.py::"
        "test_nothing_is_handed_out_while_the_state_cannot_be_written",
    ),
    Refusal(
        sentence="the pool is being stopped",
        when="a claim comes too late",
        instead="`pliant pool start`, then again",
        proof="tests/pool/test_driver.py::test_a_pool_that_is_being_stopped_makes_no_offers",
    ),
]


def two_devices() -> SimpleNamespace:
    """Return a pool that has two devices with names."""
    there = [{"name": f"cuda:{number}", "device": number} for number in range(2)]
    return SimpleNamespace(ask=lambda *_: {"devices": there})


SHARED = [
    Refusal(
        sentence="--group and --port: a pool that users share has no port; leave out one",
        when="both are given",
        instead="`--group`",
        command="pool start --group x --port 80",
    ),
    Refusal(
        sentence="there is no group 'nobody-here'; see `getent group`",
        when="`--group` names none",
        instead="a group of the machine",
        command="pool start --group nobody-here",
    ),
    Refusal(
        sentence="file/pools cannot be made: Not a directory; have it made, or say where pools are "
        "shared with PLIANT_SHARED_POOLS",
        when="where pools are shared is not there, and not this user's to make",
        instead="one of the two",
        script=no_place,
    ),
    Refusal(
        sentence="ml is of a pool that users share; start that with --group, or choose another "
        "--name",
        when="a private pool is started where a shared one lies",
        instead="one of the two",
        script=private_in_shared,
    ),
    Refusal(
        sentence="a shared pool must see whether the processes of other users live, and /proc "
        "hides them here (hidepid); have root start it",
        when="users of the machine do not see each other's processes",
        instead="root's pool, or /proc without `hidepid`",
        proof="tests/run/test_pool_host.py::"
        "test_where_processes_of_others_are_hidden_a_shared_pool_is_not_started",
    ),
    Refusal(
        sentence="ml is another user's; choose another --name",
        when="somebody else has a pool of this name, or something else",
        instead="`--name`",
        script=linked,
    ),
    Refusal(
        sentence="file/ml cannot be shared: Not a directory",
        when="a directory cannot be given to the group",
        instead="a group that you are in",
        script=below_a_file,
    ),
    Refusal(
        sentence="the file system of /proc gives no file to a single user (No such file or "
        "directory); a shared pool needs access control lists",
        when="pools are to be shared on a file system without them",
        instead="another place, in `PLIANT_SHARED_POOLS`",
        script=lambda: device_locks.require_rights(Path("/proc")),
    ),
    Refusal(
        sentence="ml may be changed by others than who runs the pool there; do not use it",
        when="a shared pool could be somebody's trap",
        instead="another pool; tell who runs the machine",
        script=open_to_all,
    ),
    Refusal(
        sentence="d ... /socket is too long for a socket; at most 107 bytes",
        when="the path of a pool is too long",
        instead="a shorter `PLIANT_SHARED_POOLS` or `--name`",
        script=lambda: registry.listen(Path("d" * 150), os.getegid(), waiting=1),
    ),
    Refusal(
        sentence="cannot listen at gone/socket: No such file or directory",
        when="the socket of a pool cannot be made",
        instead="what the sentence says",
        script=lambda: registry.listen(Path("gone"), os.getegid(), waiting=1),
    ),
    Refusal(
        sentence="only cy, whose pool it is, and root may do this; you are bob",
        when="somebody else would change what is everybody's",
        instead="ask who is named",
        proof="tests/core/test_sharing.py::test_what_is_everybodys_is_for_the_owner_to_change",
    ),
    Refusal(
        sentence="ada changes its claims too often; again in 2.0 s",
        when="one user changes what it asks for again and again",
        instead="wait as long; 60 changes in a row are free",
        proof="tests/pool/test_app.py::test_who_changes_too_often_waits",
    ),
    Refusal(
        sentence="team vision is for ada, and you are bob",
        when="a claim for a team, or of a class, of others",
        instead="another `--team` or `--priority`",
        proof="tests/core/test_sharing.py::test_a_team_and_a_class_are_for_those_who_are_named",
    ),
    Refusal(
        sentence="a notice of 7200 s is too long for a pool that users share; ask for 3600 s at "
        "most",
        when="others would wait for longer than an hour until a claim gives back",
        instead="`--notice 1h`, or a shorter `gracefulShutdownTimeoutInSeconds` of a job",
        proof="tests/core/test_sharing.py::"
        "test_no_claim_takes_longer_to_give_back_than_others_can_wait",
    ),
    Refusal(
        sentence="ada has 64 claims, and may have no more than 64 at once",
        when="one user has too many",
        instead="end some",
        proof="tests/core/test_sharing.py::test_one_user_has_so_many_claims_and_no_more",
    ),
]

INSTALLED = [
    Refusal(
        sentence="there is no page 'x'; all are in pliant docs",
        when="`pliant docs` is asked for a page that there is not",
        instead="a name of `pliant docs`",
        command="docs x",
    ),
    Refusal(
        sentence="pliant run needs torch: pip install 'pliant[engine]'",
        when="pliant was installed without what trains",
        instead="the command that it names",
        proof="tests/machine/test_named_modules.py::"
        "test_the_first_line_is_what_to_install_and_nothing_is_written",
    ),
    Refusal(
        sentence="completion is for bash, zsh, fish, and 'ksh' is none of them; name one of them",
        when="`pliant completion` is for another shell",
        instead="`pliant completion install bash`",
        command="completion show ksh",
    ),
    Refusal(
        sentence="this Python has no pydoc_data.topics, which the demo learns from; use a "
        "python.org build, or install your system's complete Python package",
        when="`pliant demo` with a Python that was packaged without its documentation",
        instead="one of the two",
        proof="tests/recipes/test_recipes.py::test_a_python_without_its_topics_is_told_what_to_do",
    ),
    Refusal(
        sentence="width=10 is not a multiple of heads=4",
        when="a `GPTConfig` of the recipes does not fit",
        instead="a multiple",
        proof="tests/recipes/test_recipes.py::test_a_width_that_the_heads_do_not_divide_is_refused",
    ),
]
