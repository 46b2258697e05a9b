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
from pliant.machine.locks import locked
from pliant.wire.messages import Ended, Noted, Usage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

PAGE = "pliant docs bring-your-script shows the lines"

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
    "a variable": (
        'import os\nrank = int(os.environ["RANK"])\n',
        "the script asks for RANK, which torchrun sets and pliant does not",
        "From torchrun",
        2,
    ),
    "a variable that is None": (
        'import os\nrank = int(os.environ.get("LOCAL_RANK"))\n',
        "the script asks for LOCAL_RANK, which torchrun sets and pliant does not",
        "From torchrun",
        2,
    ),
    "a group": (
        "from torch.distributed import init_process_group\ninit_process_group('gloo')\n",
        "the script calls torch.distributed.init_process_group, as under torchrun",
        "From torchrun",
        2,
    ),
    "a group that would wait for others": (
        "import pliant, torch.distributed as dist\n"
        "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=1, world_size=2)\n",
        "the script calls torch.distributed.init_process_group, as under torchrun",
        "From torchrun",
        2,
    ),
    "a group of one at a port": (
        "import os, pliant, torch.distributed as dist\n"
        "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1')\n"
        "os.environ['MASTER_PORT'] = '29555'\n"
        "dist.init_process_group('gloo')\n",
        "the script calls torch.distributed.init_process_group at port 29555, which one replica of "
        "a host alone can have",
        "From torchrun",
        4,
    ),
    "a group of one at a port, inside of the session": (
        LOOP
        + "    import pliant, torch.distributed as dist\n"
        + SESSION.replace('print("made a session")', "")
        + "    dist.init_process_group('gloo', 'tcp://127.0.0.1:29555', rank=0, world_size=1)\n",
        "the script calls torch.distributed.init_process_group at port 29555, which one replica of "
        "a host alone can have",
        "From torchrun",
        15,
    ),
    "a device mesh": (
        "import pliant\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "init_device_mesh('cpu', (2,))\n",
        "the script asks for RANK, which torchrun sets and pliant does not",
        "From torchrun",
        3,
    ),
    "processes of a group": (
        "import torch.distributed as dist\nimport torch.multiprocessing as mp\n"
        "def work(rank):\n    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
        "mp.spawn(work, nprocs=2)\n",
        "the script starts processes of its own with torch.multiprocessing.spawn",
        "From torchrun",
        5,
    ),
    "a plain loop": (
        LOOP + "    step()\n    print('went on')\n",
        "the script steps SGD outside of a pliant.Session",
        "From a plain loop",
        7,
    ),
    "a plain loop that catches everything": (
        LOOP
        + "    for _ in range(3):\n"
        + "        try:\n            step()\n        except Exception:\n            pass\n"
        + "    print('went on')\n",
        "the script steps SGD outside of a pliant.Session",
        "From a plain loop",
        None,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_told_once_what_it_does_and_where_to_read_on(
    servant: Servant, tmp_path: Path, name: str
) -> None:
    text, finding, section, line = REFUSED[name]

    code, said, messages = played(servant, tmp_path, text)

    told = sentence(messages)
    assert code == 2
    assert told.startswith(f"{finding}. ")
    where = f" (train.py, line {line})" if line is not None else ""
    assert told.endswith(f"; `{section}` in {PAGE}{where}")
    assert "Traceback" not in said
    assert said == f"ConfigError: {told}\n"  # so that screens do not say it once more


TRAINERS = {
    "transformers": ("trainer", "Trainer", "a transformers.Trainer", "a Trainer of Hugging Face"),
    "accelerate": ("accelerator", "Accelerator", "an Accelerator", "Accelerate"),
    "pytorch_lightning": ("trainer.trainer", "Trainer", "a Lightning Trainer", "Lightning"),
    "lightning_fabric": ("fabric", "Fabric", "a Lightning Fabric", "Lightning"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages with the names of real ones, installed as those are; each makes something."""
    place = tmp_path_factory.mktemp("packages") / "site-packages"
    for package, (module, name, _, _) in TRAINERS.items():
        path = place / package / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True)
        (place / package / "__init__.py").write_text(
            f"def __getattr__(name):\n    from {package}.{module} import {name}\n"
            f"    return {name}\n"
        )
        if "." in module:
            (path.parent / "__init__.py").touch()
        path.write_text(
            f"class {name}:\n"
            "    def __init__(self, optimizer=None):\n        self.optimizer = optimizer\n"
            "    def train(self):\n        self.optimizer.step()\n"
        )
    return place


@pytest.mark.parametrize("package", TRAINERS)
def test_who_makes_a_trainer_is_told_there(
    servant: Servant, tmp_path: Path, installed: Path, package: str
) -> None:
    _, name, words, section = TRAINERS[package]
    path = f"import sys; sys.path.insert(0, {str(installed)!r})\n"

    code, said, messages = played(
        servant, tmp_path, f"{path}from {package} import {name}\n{name}()\nprint('went on')\n"
    )

    told = sentence(messages)
    assert code == 2
    assert told.startswith(f"the script makes {words} outside of a pliant.Session. ")
    assert told.endswith(f"`From {section}` in {PAGE} (train.py, line 3)")
    assert "went on" not in said


def test_a_script_with_a_session_may_read_make_and_step_what_it_likes_before(
    servant: Servant, tmp_path: Path, installed: Path
) -> None:
    text = f"""
    import os, sys
    sys.path.insert(0, {str(installed)!r})
    import pliant
    import transformers, accelerate, pytorch_lightning
    import torch.distributed as dist
    rank = int(os.environ.get("RANK", 0))
    try:
        os.environ["LOCAL_RANK"]
    except KeyError:
        pass
    try:
        dist.init_process_group("gloo")
    except ValueError:
        pass
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    """

    code, said, messages = played(
        servant,
        tmp_path,
        text
        + LOOP
        + "    transformers.Trainer(optimizer).train()\n    step()\n    step()\n"
        + SESSION,
    )

    assert (code, said) == (0, "made a session\n")
    of_rank, note = [one.text for one in messages if isinstance(one, Noted)]
    assert "RANK" in of_rank
    assert note.startswith(
        "the script steps SGD outside of a pliant.Session, which it has not made"
    )
    assert "(train.py, line" in note
    assert not [one for one in messages if isinstance(one, Usage)]


def test_a_helper_that_is_written_for_pliant_makes_its_script_one_of_pliant(
    servant: Servant, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("def train():\n    import pliant\n")

    code, _, messages = played(
        servant, tmp_path, "    import mine\n" + LOOP + "    step()\n    mine.train()\n"
    )

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, ended.kind) == (0, ExitKind.EARLY)
    assert "before, the script steps SGD outside of a pliant.Session (train.py, " in ended.detail
    assert ended.detail.endswith(f"`From a plain loop` in {PAGE}")


def test_an_installed_trainer_that_is_written_for_pliant_may_step_what_it_likes(
    servant: Servant, tmp_path: Path
) -> None:
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "fitting.py").write_text("def fit(step):\n    step()\n    import pliant\n")
    text = f"    import sys; sys.path.append({str(place)!r})\n    import fitting\n"

    code, _, messages = played(servant, tmp_path, text + LOOP + "    fitting.fit(step)\n")

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, ended.kind) == (0, ExitKind.EARLY)


def test_a_group_of_one_process_may_be_said_by_place(servant: Servant, tmp_path: Path) -> None:
    text = """
        import pliant, torch.distributed as dist
        dist.init_process_group("gloo", "file://" + __file__ + ".store", None, 1, 0)
        print(dist.get_world_size())
    """

    code, said, messages = played(servant, tmp_path, text)

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, said, ended.kind) == (0, "1\n", ExitKind.EARLY)


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


def test_a_module_that_is_run_by_name_is_known_by_its_file(
    servant: Servant, tmp_path: Path
) -> None:
    _, _, messages = played(servant, tmp_path, LOOP + "    step()\n", "-m", "train")

    assert sentence(messages).endswith(f"`From a plain loop` in {PAGE} (train.py, line 7)")


def test_a_module_of_an_installed_package_is_its_users_own(
    servant: Servant, tmp_path: Path
) -> None:
    """It is written for pliant, which nothing of it has imported when it steps."""
    place = tmp_path / "site-packages"
    (place / "mine").mkdir(parents=True)
    (place / "mine" / "__init__.py").touch()
    later = "    def later():\n        import pliant\n"
    (place / "mine" / "train.py").write_text(textwrap.dedent(LOOP + "    step()\n" + later))

    code, _, messages = played(servant, place, "", "-m", "mine.train")

    (ended,) = [one for one in messages if isinstance(one, Ended)]
    assert (code, ended.kind) == (0, ExitKind.EARLY)
    assert "outside of a pliant.Session (mine/train.py, line 7)" in ended.detail


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
        ("import loop\n", "One is made at loop.py, line 3; what stands there under `if __name__"),
        ("import pliant\nif not 1:\n    pliant.Session()\n", "made at train.py, line 3, but the"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['-h'])\n", "showed its help and"),
        ("import sys\nsys.exit()\n", "the script ended without opening a pliant.Session; train"),
    ],
)
def test_a_script_that_ends_without_a_session_is_told_where_one_is(
    servant: Servant, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "loop.py").write_text(
        "import pliant\ndef main():\n    pliant.Session()\nif __name__ == '__main__':\n    main()\n"
    )

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
