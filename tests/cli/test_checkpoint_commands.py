"""``pliant checkpoint`` answers people and machines, and its exit code is the verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.checkpoint.states import plain_save, save

from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.shares import write_share
from pliant.checkpoint.lease import JobLease
from pliant.checkpoint.store.directory import LocalStorage
from pliant.cli.main import code_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints below ``checkpoints`` here."""
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("checkpoints")
    for committed in (100, 200, 300):
        tensors = {"model.w": torch.full((4, 3), float(committed)), "model.b": torch.ones(3)}
        save(storage, committed, state=Contents(tensors=tensors))
    return tmp_path / "checkpoints"


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = code_of(["checkpoint", *arguments])
    found = capsys.readouterr()
    return code, found.out + found.err


def values(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    _, said = answered(capsys, *arguments, "--json")
    return json.loads(said)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("root")
def test_ls_lists_the_newest_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = answered(capsys, "ls", "checkpoints")

    assert code == 0
    names = [line.split()[0] for line in said.splitlines()[1:]]
    assert names == ["step-00000300-l1", "step-00000200-l1", "step-00000100-l1"]
    found = values(capsys, "ls", "checkpoints")["checkpoints"]
    assert [one["committed"] for one in found] == [300, 200, 100]
    assert answered(capsys, "ls", "elsewhere") == (0, "elsewhere holds no checkpoint\n")


@pytest.mark.usefixtures("root")
def test_show_tells_what_is_inside(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = answered(capsys, "show", "checkpoints/step-00000200-l1/")

    assert code == 0
    assert "committed: 200" in said
    assert "model.w  float32  [4, 3]" in said
    assert values(capsys, "show", "checkpoints")["manifest"]["committed"] == 300


def test_verify_names_the_damaged_tensor_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    assert answered(capsys, "verify", "checkpoints", "--all")[0] == 0
    flip(root / "step-00000200-l1" / "__0_3.distcp")

    code, said = answered(capsys, "verify", "checkpoints", "--all")

    assert code == 1
    assert said.splitlines()[1].startswith("model.")
    assert " is damaged: the digest of bytes " in said.splitlines()[1]
    assert answered(capsys, "verify", "checkpoints")[0] == 0
    assert answered(capsys, "verify", "checkpoints/step-00000200-l1")[0] == 1
    found = values(capsys, "verify", "checkpoints", "--all")["checkpoints"]
    assert [one["sound"] for one in found] == [True, False, True]


def test_verify_all_of_a_place_that_is_one_checkpoint_reads_that(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain_save({"w": torch.ones(3)}, tmp_path / "plain")

    code, said = answered(capsys, "verify", str(tmp_path / "plain"), "--all")

    assert code == 0
    assert "loads: 1 item" in said


def test_prune_removes_what_is_old_and_unfinished(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    contents = Contents(tensors={"model.w": torch.ones(3)})
    write_share(
        LocalStorage(str(root)), "step-00000400-l1", contents, rank=0, num_shares=2, generation=1
    )
    arguments = ("prune", "checkpoints", "--keep", "1", "--milestones", "100")

    assert answered(capsys, *arguments, "--dry-run") == (0, "nothing to remove from checkpoints\n")
    code, said = answered(capsys, "prune", "checkpoints", "--keep", "1", "--milestones", "200,500")

    assert code == 0
    assert said.splitlines()[0] == f"removed {root}/step-00000100-l1"
    assert sorted(path.name for path in root.iterdir()) == ["step-00000200-l1", "step-00000300-l1"]


@pytest.mark.usefixtures("root")
def test_prune_leaves_a_root_alone_that_a_job_writes_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = JobLease(LocalStorage("checkpoints"), "gpt")
    held.ensure()

    code, said = answered(capsys, "prune", "checkpoints", "--keep", "1")

    assert code == 2
    assert "belongs to another job: job gpt" in said
    held.release()


@pytest.mark.usefixtures("root")
def test_export_writes_safetensors(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = answered(capsys, "export", "checkpoints", "w.safetensors")

    assert (code, said.partition(",")[0]) == (0, "w.safetensors: 2 tensors")
    assert torch.equal(load_file("w.safetensors")["w"], torch.full((4, 3), 300.0))


def test_what_needs_trust_is_refused_until_it_is_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain_save({"extra": {"where": tmp_path}}, tmp_path / "theirs")
    place = str(tmp_path / "theirs")

    code, said = answered(capsys, "verify", place)

    assert code == 1
    assert "reading it may run code of whoever wrote it; allow it with" in said
    assert answered(capsys, "verify", place, "--trust")[0] == 0


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["verify", "nowhere"], "nowhere holds no checkpoint"),
        (["show", "checkpoints/step-00000999-l1"], "checkpoints/step-00000999-l1/.metadata cannot"),
        (["ls", "nfs9://x"], "nfs9://x cannot be opened: Protocol not known: nfs9"),
        (["ls", "checkpoints", "--option", "x"], "--option 'x' is not KEY=VALUE"),
        (["prune", "checkpoints", "--keep", "0"], "keep=0 must be at least 1"),
        (["prune", "checkpoints", "--milestones", "x"], "--milestones 'x' is neither N nor N,N"),
        (["prune", "checkpoints", "--milestones", "0"], "--milestones '0': steps begin at 1"),
        (
            ["export", "checkpoints", "x", "--under", "y"],
            "holds no tensors under 'y'; it has model",
        ),
        (["export", "checkpoints", "no/x"], "no/x cannot be written"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    code, said = answered(capsys, *arguments)

    assert code == 2
    assert said.startswith("pliant: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_without_the_engine_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pliant.cli.main import main; main(['checkpoint', 'ls', '/tmp'])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr == "pliant: pliant checkpoint needs torch: pip install 'pliant[engine]'\n"
