"""A script that was not written for a session is recognised as soon as it can be known."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.servant import Servant, fork_server

from pliant.core.events import ExitKind
from pliant.engine.worker import script_errors
from pliant.engine.worker.other_scripts import NO_SESSION, WAYS_IN
from pliant.machine.locks import locked
from pliant.wire.messages import Ended, Noted, Usage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

LOOP = """
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
"""

SESSION = """
    dataset = torch.utils.data.TensorDataset(torch.randn(8, 4))
    session = pliant.Session(
        model=model, optimizer=optimizer, dataset=dataset, global_batch_size=4, micro_batch_size=2
    )
    print("made a session")
"""


@pytest.fixture(scope="module")
def servant() -> Iterator[Servant]:
    """A fork server that has torch imported: what agents use."""
    with fork_server("-m", "pliant.engine.worker.fork_server") as one:
        yield one


def played(
    servant: Servant, directory: Path, text: str, *command: str, **work: Any
) -> tuple[int, str, list[Any]]:
    """Run a script to its end; return its exit code, what it printed, and what it told."""
    (directory / "train.py").write_text(textwrap.dedent(text))
    worker = servant.start(directory, *(command or ["train.py"]), **work)
    messages, said = worker.messages(), worker.said()
    return servant.exit().returncode, said, messages


def sentence(messages: list[Any]) -> str:
    """Return why the script was refused: said once as such, once as how it ended."""
    (usage,) = [one.sentence for one in messages if isinstance(one, Usage)]
    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (ended.kind, ended.detail) == (ExitKind.USAGE, usage)
    return str(usage)


REFUSED = {
    "a variable": ('import os\nrank = int(os.environ["RANK"])\n', "RANK", 2),
    "a variable that is None": (
        'import os\nrank = int(os.environ.get("LOCAL_RANK"))\n',
        "LOCAL_RANK",
        2,
    ),
    "a group": (
        "from torch.distributed import init_process_group\ninit_process_group('gloo')\n",
        "RANK",
        2,
    ),
    "a device mesh": (
        "import pliant\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "init_device_mesh('cpu', (2,))\n",
        "RANK",
        3,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_told_once_what_it_does_and_where_to_read_on(
    servant: Servant, tmp_path: Path, name: str
) -> None:
    text, variable, line = REFUSED[name]

    code, said, messages = played(servant, tmp_path, text)

    told = sentence(messages)
    asked = f"the script asks for {variable}, which torchrun sets and pliant does not"
    assert code == 2
    assert told == f"{asked}. {WAYS_IN} (train.py, line {line})"
    assert "Traceback" not in said
    assert said == f"ConfigError: {told}\n"  # so that screens do not say it once more


def test_who_trains_without_a_session_is_told_the_ways_in_at_its_end(
    servant: Servant, tmp_path: Path
) -> None:
    code, _, messages = played(servant, tmp_path, LOOP + "    step()\n")

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, ended.kind) == (0, ExitKind.EARLY)
    assert ended.detail == NO_SESSION


def test_who_asks_for_a_rank_with_a_default_is_told_what_that_means(
    servant: Servant, tmp_path: Path
) -> None:
    text = "    import os, pliant\n    rank = int(os.environ.get('RANK', 0))\n"

    code, said, messages = played(servant, tmp_path, text + LOOP + SESSION)

    assert (code, said) == (0, "made a session\n")
    (note,) = [one.text for one in messages if isinstance(one, Noted)]
    assert note.startswith("the script asks for RANK, which torchrun sets and pliant does not")


def test_workers_of_one_replica_may_make_groups_between_them(
    servant: Servant, tmp_path: Path
) -> None:
    text = """
        import os, torch.distributed as dist
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(
            "gloo", init_method="file://" + __file__ + ".store", rank=rank, world_size=size
        )
        sizes = [None] * size
        dist.all_gather_object(sizes, (rank, os.environ["LOCAL_WORLD_SIZE"]))
        print(sizes)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text))

    workers = [servant.start(tmp_path, "train.py", place=place, workers=2) for place in (0, 1)]

    for worker in workers:
        assert worker.messages()  # until it ends
        assert worker.said() == "[(0, '2'), (1, '2')]\n"
    assert {servant.exit().place for _ in workers} == {0, 1}


def test_who_makes_no_session_and_cannot_write_out_a_file_is_ended_as_well(
    servant: Servant, tmp_path: Path
) -> None:
    """Its main thread is in the middle of writing, so nobody else can."""
    text = """
        import os
        from pliant.engine.worker import bootstrap
        bootstrap.CLEANUP_S = 1.0
        full = os.fdopen(os.pipe()[1], "wb")
        full.write(b"x" * 10_000_000)
    """

    code, _, messages = played(servant, tmp_path, text, session_s=0.1)

    assert code == 2
    assert sentence(messages).startswith("the script has made no pliant.Session in 0.1 s")


def test_who_makes_no_session_in_time_is_ended_wherever_it_is(
    servant: Servant, tmp_path: Path
) -> None:
    text = "import time\nimport pliant\ntry:\n    time.sleep(80)\nexcept BaseException:\n    pass\n"

    code, said, messages = played(servant, tmp_path, text, session_s=0.1)

    told = sentence(messages)
    assert code == 2
    assert told.startswith(
        "the script has made no pliant.Session in 0.1 s and is at train.py, line 4. "
    )
    assert "--session-timeout" in told
    assert said == f"ConfigError: {told}\n"


def test_who_waits_for_another_too_long_is_told_for_whom(servant: Servant, tmp_path: Path) -> None:
    text = "import pliant\nwith pliant.once('tokens'):\n    pass\n"
    block = tmp_path / "out" / "once" / "tokens"
    block.parent.mkdir(parents=True)
    block.write_text("r7")
    with locked(block):
        _, _, messages = played(servant, tmp_path, text, session_s=0.1)

    assert sentence(messages) == (
        "the script has made no pliant.Session in 0.1 s and is at train.py, line 2: it waits for "
        "pliant.once('tokens'), which r7 runs. If that needs longer, say so: --session-timeout 2h"
    )


def test_who_makes_it_in_time_may_take_its_time_afterwards(
    servant: Servant, tmp_path: Path
) -> None:
    wait = "    import time\n    time.sleep(1.2)\n"

    code, said, _ = played(
        servant, tmp_path, "    import pliant\n" + LOOP + SESSION + wait, session_s=1.0
    )

    assert (code, said) == (0, "made a session\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import argparse\nargparse.ArgumentParser().parse_args(['-h'])\n", "showed its help and"),
        ("import sys\nsys.exit()\n", "the script ended without opening a pliant.Session; train"),
    ],
)
def test_a_script_that_ends_without_a_session_is_told_why(
    servant: Servant, tmp_path: Path, text: str, words: str
) -> None:
    _, _, messages = played(servant, tmp_path, text)

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert ended.kind is ExitKind.EARLY
    assert words in ended.detail


@pytest.mark.parametrize(
    ("text", "kind", "detail"),
    [
        (
            "import argparse as a\np = a.ArgumentParser()\np.add_argument('lr')\np.parse_args()\n",
            ExitKind.USAGE,
            "the script exited with code 2: the following arguments are required: lr",
        ),
        (
            "import sys\nsys.exit('no data')\n",
            ExitKind.SCRIPT,
            "the script exited with code 1: no data",
        ),
        (
            "import io, sys\nsys.stderr = io.StringIO()\nsys.exit('x' * 5_000_000)\n",
            ExitKind.SCRIPT,
            "xxx ...",
        ),
        (
            "import io, sys\nsys.stderr = io.StringIO()\nraise ValueError('x' * 5_000_000)\n",
            ExitKind.SCRIPT,
            "xxx ...",
        ),
        (
            "import torch\nmodel = torch.nn.Linear(3, 3)\nmodel.to('cuda')\n",
            ExitKind.USAGE,
            "(train.py, line 3)",
        ),
        (
            "class E(Exception):\n    def __str__(self):\n        return 3\nraise E\n",
            ExitKind.SCRIPT,
            "E: <exception str() failed>",
        ),
    ],
)
def test_how_a_script_fails_is_said_in_its_own_words(
    servant: Servant, tmp_path: Path, text: str, kind: ExitKind, detail: str
) -> None:
    _, said, messages = played(servant, tmp_path, text)

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert ended.kind is kind
    assert ended.detail.endswith(detail)
    if "cuda" in text:
        assert ended.detail.startswith("the script asks for an accelerator, and torch can use none")
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("said", "is_asked_again"), [("out of memory", True), ("misaligned address", False)]
)
def test_nothing_is_asked_of_a_device_that_has_failed(
    servant: Servant, tmp_path: Path, said: str, is_asked_again: bool
) -> None:
    text = f"""import atexit, torch
atexit.register(print, "asked at the end")
raise torch.AcceleratorError("CUDA error: {said}")
"""

    code, printed, messages = played(servant, tmp_path, text)

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, ended.kind) == (1, ExitKind.DEVICE)
    assert said in ended.detail
    assert ("asked at the end" in printed) == is_asked_again
    assert "Traceback" in printed


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (RuntimeError("Expected all tensors to be on the same device: cuda:0 and cpu"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("... on a CUDA device: use torch.load with map_location='cpu'"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (KeyError("RANK"), False),  # of a dictionary of the script's
        (ValueError("environment variable WORLD_SIZE expected, but not set"), True),
    ],
)
def test_only_what_is_known_better_is_explained(error: Exception, is_explained: bool) -> None:
    with pytest.raises(type(error)) as caught:
        raise error

    assert (script_errors.explained(caught.value, {}) is not None) == is_explained


@pytest.mark.parametrize("is_environment", [True, False])
def test_a_variable_is_one_that_the_environment_was_asked_for(is_environment: bool) -> None:
    config: dict[str, Any] = {}
    text = "class Config(dict):\n    def __getitem__(self, key):\n        raise KeyError(key)\n"
    exec(compile(text, "/home/jose/config.py", "exec"), config)
    asked = os.environ if is_environment else config["Config"]()
    with pytest.raises(KeyError) as caught:
        asked["GROUP_RANK"]

    assert (script_errors.explained(caught.value, {}) is not None) == is_environment
