"""What happens around a job: the checks before it, and what is said at its end."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority

from pliant.cli import start
from pliant.cli.main import code_of
from pliant.cli.settings import resolve
from pliant.cli.start import invite
from pliant.core.device_masks import Accelerator
from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles
from pliant.machine import locks
from pliant.run import host_devices
from pliant.run.job_config import JobConfig
from pliant.run.run_directory import locked


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def ends_like(monkeypatch: pytest.MonkeyPatch, run_job: Callable[..., Any]) -> None:
    monkeypatch.setattr(start, "run_job", run_job)


def test_a_full_disk_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(config: Any, **_: Any) -> int:
        (config.out / "events.jsonl").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends_like(monkeypatch, fill)

    assert code_of(["run", "train.py"]) == 1

    out = Path("runs/train").absolute()
    assert capsys.readouterr().err == f"pliant: the job ended: {out}: No space left on device\n"
    assert out.exists()


def test_an_interrupt_before_the_start_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_like(monkeypatch, lambda config, **_: 3)

    assert code_of(["run", "train.py"]) == 3

    assert capsys.readouterr().err == "pliant: stopped before the job had started\n"
    assert sorted(path.name for path in Path().iterdir()) == ["train.py"]


def test_a_run_that_is_refused_removes_nothing_of_one_that_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as first:

        def refuse(config: Any, **_: Any) -> int:
            first.enter_context(locked(config.out, alone=True))  # started at the same moment
            with locked(config.out, alone=True):
                raise AssertionError("two run in one directory")

        ends_like(monkeypatch, refuse)

        assert code_of(["run", "train.py"]) == 2
        assert Path("runs/train/running.lock").exists()


def test_a_run_whose_directory_was_moved_begins_with_its_own_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, out = tmp_path / "runs" / "old", tmp_path / "runs" / "new"
    out.mkdir(parents=True)
    (out / "init.pt").touch()
    began = {
        "kind": "job_started",
        "at": 1.0,
        "job": "train",
        "policy": {"min": 1, "max": 1, "start": None},
        "command": ["train.py"],
        "cwd": str(tmp_path),
        "out": str(before),
        "init": str(before / "init.pt"),
    }
    (out / "events.jsonl").write_text(json.dumps(began) + "\n")
    seen: list[Any] = []

    def note(config: Any, **_: Any) -> int:
        seen.append(config.init)
        return 0

    ends_like(monkeypatch, note)

    assert code_of(["resume", str(out)]) == 0
    assert seen == [out / "init.pt"]


def test_a_run_is_resumed_as_it_is_once_its_process_has_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typed while it makes its last step: it is found to have finished, and is not run again."""
    out = Path("runs/train")
    out.mkdir(parents=True)
    began = {"kind": "job_started", "at": 1.0, "job": "train", "cwd": str(Path.cwd())}
    began |= {"policy": {"min": 1, "max": 1, "start": None}, "command": ["train.py"]}
    (out / "events.jsonl").write_text(json.dumps(began) + "\n")
    ends_like(monkeypatch, lambda config, **_: pytest.fail("it runs again"))
    lock = locks.lock
    with ExitStack() as first:
        first.enter_context(locked(out, alone=True))

        def leaving(fd: int, *, shared: bool = False, within_s: float | None = None) -> bool:
            if within_s:
                with (out / "events.jsonl").open("a") as log:
                    log.write('{"kind": "job_ended", "at": 2.0, "exit_code": 0, "reason": ""}\n')
                first.close()
            return lock(fd, shared=shared, within_s=within_s)

        monkeypatch.setattr(locks, "lock", leaving)

        assert code_of(["resume", str(out)]) == 2

    assert "has finished, after 0 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damaged", [{"command": []}, {"command": [1]}, {"job": None}, {"cwd": 3}, {"policy": []}]
)
def test_a_beginning_that_is_damaged_says_nothing(
    capsys: pytest.CaptureFixture[str], damaged: dict[str, Any]
) -> None:
    began = {"kind": "job_started", "job": "train", "policy": {}, "command": ["train.py"]}
    Path("run").mkdir()
    Path("run/events.jsonl").write_text(json.dumps({**began, "cwd": "/", **damaged}) + "\n")

    for named in (["run"], ["--job", "run"]):
        assert code_of(["resume", *named]) == 2
        assert "run does not say what ran there" in capsys.readouterr().err


def test_a_checkpoint_to_begin_with_that_is_none_leaves_no_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("weights").mkdir()

    assert code_of(["run", "--init", "weights", "train.py"]) == 2

    assert capsys.readouterr().err.startswith("pliant: --init weights: ")
    assert sorted(path.name for path in Path().iterdir()) == ["train.py", "weights"]


def test_a_directory_whose_name_is_no_text_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_of(["run", "--out", "caf\udce9", "train.py"]) == 2
    Path("caf\udce9").mkdir()
    monkeypatch.chdir("caf\udce9")
    Path("train.py").touch()
    assert code_of(["run", "train.py"]) == 2

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    for line in said:
        assert line.endswith(
            r"caf\udce9' is no text in UTF-8, as the directories of a run must be; rename it"
        )


@pytest.mark.parametrize(
    ("kept", "why", "said"),
    [
        (5, None, "after step 5: pliant resume {out}"),
        (3, None, "after step 3: pliant resume {out}; 2 later steps are not saved, and"),
        (
            4,
            "disk full",
            "after step 4: pliant resume {out}; 1 later step is not saved (disk full)",
        ),
        (None, "disk full", "again at step 0: pliant resume {out}; 5 later steps are not saved"),
        (0, None, "again at step 0: pliant resume {out}; 5 later steps are not saved, and will be"),
        (None, None, "without checkpoints (Session(checkpoint=...)) it cannot go on"),
    ],
)
def test_a_stopped_job_says_what_it_goes_on_with_and_what_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kept: int | None,
    why: str | None,
    said: str,
) -> None:
    def stop(config: Any, *, observer: Any) -> int:
        (config.out / "events.jsonl").touch()
        records: list[Any] = [{"kind": "commit", "step": 4}]
        records += [{"kind": "spare", "replica": "r1", "is_durable": kept is not None}]
        records += [{"kind": "saved", "committed": kept}] if kept else []
        records += [{"kind": "save_failed", "reason": why}] if why else []
        for record in records:
            observer.board.add(record)
        return 3

    ends_like(monkeypatch, stop)

    assert code_of(["run", "train.py"]) == 3
    assert said.format(out=Path("runs/train").absolute()) in capsys.readouterr().err


def test_a_job_of_which_nothing_verifies_is_not_said_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(config: Any, *, observer: Any) -> int:
        (config.out / "events.jsonl").touch()
        for record in (
            {"kind": "commit", "step": 4},
            {"kind": "saved", "committed": 5},
            {"kind": "end_job", "exit_code": 4, "reason": "no checkpoint is left"},
        ):
            observer.board.add(record)
        return 4

    ends_like(monkeypatch, lose)

    assert code_of(["run", "train.py"]) == 4
    assert capsys.readouterr().err == "pliant: no checkpoint is left\n"


# --- TLS ----------------------------------------------------------------------------


def options(files: TlsFiles) -> list[str]:
    return ["--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key]


def configs_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which every job that begins is added."""
    seen: list[Any] = []

    def note(config: Any, **_: Any) -> int:
        (config.out / "events.jsonl").touch()
        seen.append(config)
        return 0

    for name in ("run_job", "run_coordinator"):
        monkeypatch.setattr(start, name, note)
    return seen


def test_nccl_is_refused_where_replicas_talk_over_tls(capsys: pytest.CaptureFixture[str]) -> None:
    files = Authority(Path("ca").absolute()).files()

    assert code_of(["run", *options(files), "--exchange", "nccl", "train.py"]) == 2

    assert "NCCL does not encrypt what it sends; leave out one of them" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_job_begins_with_the_files_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, files = configs_of(monkeypatch), Authority(Path("ca").absolute()).files()

    code_of(["run", *options(files), "train.py"])
    code_of(["run", "train.py"])

    assert [config.tls for config in seen] == [files, None]


def test_files_that_no_node_would_accept_are_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = Authority(Path("ca")).files(days=(-3, -1))

    assert code_of(["run", *options(files), "train.py"]) == 2

    expired = f"the certificate {Path('ca/node.pem').absolute()} has expired, or its CA has"
    assert capsys.readouterr().err == f"pliant: {expired}\n"
    assert sorted(path.name for path in Path().iterdir()) == ["ca", "train.py"]


def test_a_key_that_everybody_can_read_is_said_and_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, files = configs_of(monkeypatch), Authority(Path("ca").absolute()).files()
    Path(files.key).chmod(0o644)

    code_of(["run", *options(files), "train.py"])

    assert len(seen) == 1
    warning = f"pliant: every user of this machine can read the key {files.key}; chmod 600 it\n"
    assert warning in capsys.readouterr().err


def test_the_host_of_a_coordinator_alone_needs_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = configs_of(monkeypatch)
    files = TlsFiles(ca="/far/ca.pem", certificate="/far/node.pem", key="/far/node.key")

    code_of(["coordinator", "--port", "7000", *options(files), "train.py"])

    assert [config.tls for config in seen] == [files]


def test_a_job_in_the_background_has_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Authority(Path("ca").absolute()).files()
    documents: list[Any] = []

    def begin(module: Any, document: Any, **_: Any) -> Any:
        documents.append(json.loads(json.dumps(document)))
        raise ConfigError("that is enough")

    monkeypatch.setattr("pliant.run.background.start", begin)

    code_of(["run", "--detach", *options(files), "train.py"])

    assert [start.Start.of(one, os.environ).config.tls for one in documents] == [files]


def test_a_resumed_run_has_the_files_of_its_start_and_looks_at_them_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, files = configs_of(monkeypatch), Authority(Path("ca").absolute()).files()
    code_of(["run", *options(files), "train.py"])
    out = Path("runs/train")
    began = {"kind": "job_started", "at": 1.0, "job": "train", "out": str(out.absolute())}
    record = {**began, **seen[0].document()}
    (out / "events.jsonl").write_text(json.dumps(record) + "\n")

    assert code_of(["resume", str(out)]) == 0
    assert [config.tls for config in seen] == [files, files]

    Path(files.key).unlink()
    capsys.readouterr()
    assert code_of(["resume", str(out)]) == 2
    said = f"pliant: the key {files.key} cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("given", "limits"),
    [("30min", (1800.0, 2000.0)), ("2s", (2.0, 600.0)), (None, (540.0, 600.0))],
)
def test_a_script_that_may_be_late_with_its_session_may_be_late_with_its_steps(
    given: str | None, limits: tuple[float, float]
) -> None:
    settings = resolve({"session_timeout": given}, {}, None)

    config = start.planned(["train.py"], settings, {}).config

    assert (config.work().session_s, config.settings.start_s) == limits


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "at most 2 replicas on 2 cores, and no more than a step has micro-batches; --max N"),
        (["--max", "4"], "4 workers on 2 cores: 3 replicas are slower than 2"),
        (["--max", "1", "--workers-per-replica", "4"], "4 workers on 2 cores: they share them"),
        (["--max", "2"], ""),
    ],
)
def test_more_workers_than_cores_are_told_at_the_start(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configs_of(monkeypatch)
    monkeypatch.setattr(host_devices, "count_cores", lambda: 2)
    monkeypatch.setattr(host_devices, "visible", lambda environ: ())

    code_of(["run", *options, "train.py"])

    told = capsys.readouterr().out.split("files:")[0]
    assert told.startswith(said)
    assert bool(told) is bool(said)


GPUS = (Accelerator(name="cuda:GPU-a"), Accelerator(name="cuda:GPU-b"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "at most 2 replicas on 2 accelerators, and no more than a step has micro-batches\n"),
        (["--max", "4"], "--max 4: there will be 2 at most on 2 accelerators, each for one worker"),
        (["--max", "2"], ""),
        (["--max", "64", "--kind", "cpu"], "64 workers on "),
    ],
)
def test_accelerators_have_one_worker_each(
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = configs_of(monkeypatch)
    monkeypatch.setattr(host_devices, "visible", lambda environ: GPUS)

    code_of(["run", *options, "train.py"])

    told = capsys.readouterr().out.split("files:")[0]
    assert told.startswith(said)
    assert bool(told) is bool(said)
    kind = "cpu" if "cpu" in options else None
    (config,) = found
    assert (
        config.device_kind
        == JobConfig.of(config.document(), name="x", out=config.out, environ={}).device_kind
        == kind
    )


def test_a_kind_that_is_not_here_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs_of(monkeypatch)
    monkeypatch.setattr(host_devices, "visible", lambda environ: GPUS)

    assert code_of(["run", "--kind", "rocm", "train.py"]) == 2

    said = "--kind rocm: this host has no such device; it has cpu, cuda"
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


TOKEN = Path("/job.token")


def test_a_coordinator_alone_waits_for_agents(capsys: pytest.CaptureFixture[str]) -> None:
    invite(TOKEN, "https://10.0.0.1:7000", takes_part=False, is_quiet=False)

    assert capsys.readouterr().err == (
        "waiting for agents: pliant agent --join 10.0.0.1:7000 --token-file /job.token "
        "--tls-ca CA --tls-certificate CERTIFICATE --tls-key KEY\n"
    )


def test_a_host_that_takes_part_names_the_command_that_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Seen: pliant run --join told people to start agents."""
    invite(TOKEN, "http://10.0.0.1:7000", takes_part=True, is_quiet=False)

    assert capsys.readouterr().err == (
        "this host coordinates, at 10.0.0.1:7000: the same command on any other host joins it, "
        "with a copy of /job.token\n"
    )


def test_nothing_is_said_to_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    invite(TOKEN, "http://10.0.0.1:7000", takes_part=True, is_quiet=True)

    assert capsys.readouterr().err == ""
