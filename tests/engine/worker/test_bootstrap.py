"""A worker's script finds what ``python train.py`` would give it, and ends in a known way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.processes.plainly import said_by_python
from tests.processes.servant import DEADLINE_S, fork_server, run, shared

from pliant.core.errors import ConfigError
from pliant.core.events import ExitKind, Progressed
from pliant.engine.worker.bootstrap import kernel_limit_s, launched_together, worker_context
from pliant.machine import device_locks
from pliant.wire.messages import Ended, Traceback, Usage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(40)]


@pytest.fixture(scope="module", autouse=True)
def common_server() -> Iterator[None]:
    with shared():
        yield


def script(directory: Path, text: str, name: str = "train.py") -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def ended(messages: list[object]) -> Ended:
    (last,) = [message for message in messages if isinstance(message, Ended)]
    return last


FACTS = """
    import inspect, json, os, pickle, signal, sys, threading
    import __main__, neighbour
    class Thing:
        pass
    def where():
        return sys._getframe().f_code.co_filename
    def open_files():
        links = []
        for fd in os.listdir("/proc/self/fd"):
            if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}"):
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        links = [link for link in links if "libffi" not in link]  # it keeps itself open (3.5)
        return [link for link in links if link.startswith("/") and not link.startswith("/proc")]
    json.dump({
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "file": __file__, "name": __name__,
        "path0": sys.path[0], "rest": sys.path[1:], "cwd": os.getcwd(),
        "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached],
        "package": __package__, "doc": __doc__, "cached": repr(__cached__),
        "main": __main__.__dict__ is globals(), "code": where(),
        "pickle": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
        "source": inspect.getsource(where), "neighbour": neighbour.__file__,
        "environment": {k: v for k, v in os.environ.items() if k not in ("_", "PWD", "OLDPWD")},
        "threads": [t.name for t in threading.enumerate() if t.name != "link"],
        "stdin": sys.stdin.read(), "hash": hash("a"), "safe": sys.flags.safe_path,
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "builtins": type(__builtins__).__name__, "names": sorted(globals()),
        "loader": type(__loader__).__name__, "files": open_files(),
    }, sys.stdout)
"""


@pytest.mark.parametrize(
    ("command", "file", "where"),
    [
        ("train.py", "train.py", ""),
        ("deep/er/train.py", "deep/er/train.py", "deep/er"),
        ("-m train", "train.py", ""),
        ("-m deep.er.train", "deep/er/train.py", ""),
        ("-m deep.er", "deep/er/__main__.py", ""),
    ],
)
def test_a_script_finds_what_python_would_give_it(
    tmp_path: Path, command: str, file: str, where: str
) -> None:
    name = command.split()
    script(tmp_path, FACTS, file)
    script(tmp_path, "", str(Path(where) / "neighbour.py"))
    plain = subprocess.run(
        [sys.executable, *name, "--steps", "5"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        # As from a terminal, also where the tests run in the background of a shell.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )

    code, said, _ = run(
        tmp_path, *name, "--steps", "5", PYTHONHASHSEED="0", MALLOC_TRIM_THRESHOLD_="1"
    )

    assert code == 0, said
    warm, expected = json.loads(said), json.loads(plain.stdout)
    for facts in (warm, expected):
        facts["environment"].pop("PYTEST_CURRENT_TEST", None)
    assert warm == expected


def test_what_is_printed_last_is_there_without_the_end_of_its_line(tmp_path: Path) -> None:
    name = script(tmp_path, "import sys; sys.stdout.write('done')")

    code, said, _ = run(tmp_path, name, PYTHONUNBUFFERED="")

    assert (code, said) == (0, "done")


@pytest.mark.parametrize("command", ["train.py", "-m train"])
def test_classes_of_the_script_reach_spawned_processes(tmp_path: Path, command: str) -> None:
    script(
        tmp_path,
        """
        import multiprocessing
        class Thing:
            def __call__(self):
                return 42
        def call(thing):
            return thing()
        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.apply(call, (Thing(),)))
        """,
    )

    code, said, _ = run(tmp_path, *command.split())

    assert (code, said) == (0, "42\n42\n")


def test_nothing_that_was_written_or_registered_is_lost_at_the_end(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import atexit, sys, threading, time
        forgotten = open("forgotten.txt", "w")
        forgotten.write("text")
        atexit.register(lambda: print("registered"))
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
        sys.stdout.write("no end of line ")
        """,
    )

    code, said, _ = run(tmp_path, name)

    assert (code, said) == (0, "no end of line thread\nregistered\n")
    assert (tmp_path / "forgotten.txt").read_text() == "text"


@pytest.mark.parametrize("command", ["train.py", "-m train"])
def test_an_exception_shows_only_the_frames_of_the_script(tmp_path: Path, command: str) -> None:
    name = script(tmp_path, "def f():\n    1 / 0\nf()\n")

    code, said, messages = run(tmp_path, *command.split())

    expected = said_by_python(tmp_path / name)
    assert expected.endswith("ZeroDivisionError: division by zero\n")
    assert (code, said) == (1, expected)
    assert [m.text for m in messages if isinstance(m, Traceback)] == [expected]
    assert ended(messages).kind is ExitKind.SCRIPT
    assert ended(messages).detail == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("raise KeyError('one', 2)", "KeyError: ('one', 2)"),
        ("raise ValueError('no such\\n\\tcolumn: x')", "ValueError: no such column: x"),
        ("raise ValueError()", "ValueError"),
        ("raise ExceptionGroup('two', [OSError(1)])", "ExceptionGroup: two (1 sub-exception)"),
        ("e = OSError('a'); e.add_note('b'); raise e", "OSError: a b"),
        ("exec('1 +')", "SyntaxError: invalid syntax"),
    ],
)
def test_an_end_names_the_exception_with_all_that_it_says(
    tmp_path: Path, text: str, detail: str
) -> None:
    _, _, messages = run(tmp_path, script(tmp_path, text))

    assert ended(messages).detail == detail


def test_a_wrong_use_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        from pliant.core.errors import UsageError
        raise UsageError("this cannot be")
        """,
    )

    code, said, messages = run(tmp_path, name)

    assert (code, said) == (2, "UsageError: this cannot be (train.py, line 3)\n")
    assert [m.sentence for m in messages if isinstance(m, Usage)] == [
        "this cannot be (train.py, line 3)"
    ]
    assert ended(messages).kind is ExitKind.USAGE


@pytest.mark.parametrize(
    "hides",
    [
        "try: train()\nexcept Exception: pass",
        "try: train()\nexcept Exception: sys.exit(1)",
        "try: train()\nexcept Exception: print(result)",
        "threading.Thread(target=train).start()",
    ],
)
def test_a_refusal_is_told_though_the_script_hides_it(tmp_path: Path, hides: str) -> None:
    """As loguru's ``@logger.catch`` does; each replacement would meet it again."""
    text = """
        import sys, threading
        from pliant.core.errors import UsageError
        def train():
            raise UsageError("this cannot be")
        """
    name = script(tmp_path, f"{textwrap.dedent(text)}{hides}\n")

    code, _, messages = run(tmp_path, name)

    sentence = "this cannot be (train.py, line 5)"
    assert (code, ended(messages).kind, ended(messages).detail) == (2, ExitKind.USAGE, sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import os\nfor _ in range(2): os.makedirs('out')", "out is there already, as each"),
        ("import os\nfor _ in range(2): os.mkdir('out')", "out is there already, as each"),
        (
            "from pathlib import Path\nfor _ in range(2): Path('out').mkdir()",
            "out is there already, as each replica runs the top of the script; write exist_ok=True"
            " where it is made (train.py, line 2)",
        ),
        (
            """
            import torch
            one = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
            schedule = torch.optim.lr_scheduler.OneCycleLR(one, max_lr=1.0, total_steps=2)
            one.step()
            for _ in range(3): schedule.step()
            """,
            "a scheduler was made for 2 steps and the run has more; give OneCycleLR total_steps=",
        ),
        (
            "import torch\ntorch.nn.BatchNorm1d(6)(torch.zeros(1, 6))",
            "BatchNorm cannot train on one sample, and the last micro-batch of an epoch has one;",
        ),
    ],
)
def test_a_mistake_that_each_replica_would_repeat_is_one_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    code, said, messages = run(tmp_path, script(tmp_path, text))

    assert (code, ended(messages).kind) == (2, ExitKind.USAGE)
    assert ended(messages).detail.startswith(sentence)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("text", "code", "said", "kind"),
    [
        ("pass", 0, "", ExitKind.EARLY),
        ("raise SystemExit", 0, "", ExitKind.EARLY),
        ("raise SystemExit(5)", 5, "", ExitKind.SCRIPT),
        ("raise SystemExit(2)", 2, "", ExitKind.USAGE),
        ("raise SystemExit('why')", 1, "why\n", ExitKind.SCRIPT),
        ("import os; os._exit(9)", 9, "", None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "", None),
    ],
)
def test_every_end_has_its_code(
    tmp_path: Path, text: str, code: int, said: str, kind: ExitKind | None
) -> None:
    found, output, messages = run(tmp_path, script(tmp_path, text))

    assert (found, output) == (code, said)
    assert [m.kind for m in messages if isinstance(m, Ended)] == ([kind] if kind else [])


@pytest.mark.parametrize("closed", ["sys.stderr.close()", "sys.stderr = None"])
@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        ("ValueError('what')", 1, ExitKind.SCRIPT),
        ("pliant.core.errors.UsageError('what')", 2, ExitKind.USAGE),
        ("SystemExit('what')", 1, ExitKind.SCRIPT),
        ("pliant.core.errors.StateCorruptError('what')", 1, ExitKind.CORRUPT),
    ],
)
def test_an_end_is_told_though_the_script_has_closed_its_standard_error(
    tmp_path: Path, closed: str, error: str, code: int, kind: ExitKind
) -> None:
    text = f"import sys, pliant.core.errors\n{closed}\nraise {error}"

    found, _, messages = run(tmp_path, script(tmp_path, text))

    last = ended(messages)
    assert (found, last.kind) == (code, kind)
    assert "what" in last.detail


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("raise OSError(24, 'Too many open files')", "short of file descriptors: ulimit -n is "),
        ("raise RuntimeError('No space left on device (28)')", "short of room on a disk, or in /d"),
        (
            """
            from pliant.core.errors import ConfigError
            try:
                raise MemoryError
            except MemoryError as error:
                raise ConfigError("no weights") from error
            """,
            "short of memory: see free, or the container's limit",
        ),
    ],
)
def test_what_a_machine_is_short_of_is_no_fault_of_the_script(
    tmp_path: Path, text: str, detail: str
) -> None:
    _, _, messages = run(tmp_path, script(tmp_path, text))

    assert ended(messages).kind is ExitKind.SHORT
    assert ended(messages).detail.startswith(detail)


@pytest.mark.parametrize("said", ["soon", "0", "nan"])
def test_how_long_a_kernel_may_take_is_a_number_of_seconds(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernel_limit_s() == 60.0
    monkeypatch.setenv("PLIANT_KERNEL_SECONDS", said)

    with pytest.raises(ConfigError, match=f"PLIANT_KERNEL_SECONDS={said} must be a number"):
        kernel_limit_s()


def test_a_missing_script_is_a_wrong_input(tmp_path: Path) -> None:
    code, said, _ = run(tmp_path, "nothing.py")

    assert code == 2
    assert said == "ConfigError: cannot read the script nothing.py: No such file or directory\n"


def test_a_module_that_a_node_lacks_is_a_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()

    for name in ("gone", "package", "package.gone.train"):
        code, said, _ = run(tmp_path, "-m", name)

        assert code == 2
        assert said == (
            f"ConfigError: there is no module {name} to run in {tmp_path} or installed here\n"
        )


def test_what_fails_in_the_package_of_a_module_is_the_scripts(tmp_path: Path) -> None:
    script(tmp_path, "import not_there", "package/__init__.py")
    script(tmp_path, "", "package/train.py")

    code, said, messages = run(tmp_path, "-m", "package.train")

    assert (code, ended(messages).kind) == (1, ExitKind.SCRIPT)
    assert said.endswith("ModuleNotFoundError: No module named 'not_there'\n")
    assert f'File "{tmp_path}/package/__init__.py", line 1' in said


def test_a_session_that_was_left_open_is_closed(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        from pliant.core.events import ExitKind
        from pliant.engine.worker.bootstrap import worker_context
        class Session:
            def close(self):
                print("closed")
                context.end_as(ExitKind.FINISHED)
        context = worker_context()
        context.open_session(Session())
        assignment, work = context.assignment, context.assignment.work
        print(context.replica, work.job, work.out, assignment.address, work.init)
        print(context.link.incarnation)
        """,
    )

    code, said, messages = run(tmp_path, name)

    assert said.splitlines() == [f"r1 j {tmp_path}/out 127.0.0.1 None", "3", "closed"]
    assert (code, ended(messages).kind) == (0, ExitKind.FINISHED)


def test_a_script_finds_what_its_replica_proves_itself_with(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files()
    text = """
        from pliant.engine.worker.bootstrap import worker_context
        context = worker_context()
        print(context.tls is not None and context.tls.files == context.assignment.work.tls)
    """

    script(tmp_path, text)

    assert run(tmp_path, "train.py", tls=files)[1] == "True\n"
    assert run(tmp_path, "train.py")[1] == "False\n"


def test_a_worker_whose_certificate_has_expired_does_not_run_its_script(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files(days=(-3, -1))
    script(tmp_path, "print('ran')")

    code, said, messages = run(tmp_path, "train.py", tls=files)

    sentence = f"the certificate {files.certificate} has expired, or its CA has"
    assert (code, said) == (1, f"{sentence}\n")
    assert (ended(messages).kind, ended(messages).detail) == (ExitKind.SHORT, sentence)


def test_a_worker_says_that_it_lives_while_its_script_imports(tmp_path: Path) -> None:
    _, _, messages = run(tmp_path, script(tmp_path, "import time; time.sleep(0.7)"))

    assert len([message for message in messages if isinstance(message, Progressed)]) >= 2


def test_a_script_that_runs_alone_has_no_context() -> None:
    assert worker_context() is None


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "4"}, 1),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "here"}, 4),
        ({"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}, 4),
        ({"WORLD_SIZE": "x", "MASTER_ADDR": "here"}, 1),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, 2),
        ({"SLURM_NTASKS": "2"}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"PMI_SIZE": "2"}, 2),
    ],
)
def test_the_environment_of_a_launcher_is_recognised(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], size: int
) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert launched_together()[1] == size


def test_a_worker_has_its_device_of_the_pool_before_its_script_runs(tmp_path: Path) -> None:
    text = """
        import os
        from pathlib import Path
        from pliant.machine import device_locks
        held = [holder.pid for holder in device_locks.holders(Path(), 3)]
        print(os.environ["PLIANT_DEVICES"], held == [os.getpid()])
    """
    script(tmp_path, text)

    _, said, _ = run(tmp_path, "train.py", device=3)

    assert said.split() == ["3", "True"]
    assert device_locks.is_free(tmp_path, 3)


def test_a_worker_whose_device_is_taken_does_not_run_its_script(tmp_path: Path) -> None:
    script(tmp_path, "import bootstrap_marker")
    lock = device_locks.take_device(tmp_path, 0, claim="stranger")
    assert lock is not None
    try:
        code, said, messages = run(tmp_path, "train.py", device=0)
    finally:
        lock.release()

    who = f"process {os.getpid()} of claim stranger"
    sentence = f"the script was not run: {who} has device 0 ({tmp_path / '0.lock'})"
    assert (code, said.strip()) == (1, sentence)
    assert (ended(messages).kind, ended(messages).detail) == (ExitKind.TAKEN, sentence)


def test_a_worker_whose_device_is_freed_in_time_runs_its_script(tmp_path: Path) -> None:
    """A killed worker's loader processes may hold its device for a moment longer."""
    script(tmp_path, "print('ran')")
    lock = device_locks.take_device(tmp_path, 0, claim="the one before")
    assert lock is not None
    with fork_server() as servant:
        worker = servant.start(tmp_path, "train.py", device=0)
        lock.release()
        worker.messages()

        assert worker.said() == "ran\n"
        servant.exit()


def test_a_killed_worker_frees_its_device_and_its_loader_processes_die_with_it(
    tmp_path: Path,
) -> None:
    text = """
        import multiprocessing, os, threading
        fork = multiprocessing.get_context("fork")
        loader = fork.Process(target=threading.Event().wait)
        loader.start()
        print(loader.pid, flush=True)
        threading.Event().wait()
    """
    script(tmp_path, text)
    with fork_server() as servant:
        worker = servant.start(tmp_path, "train.py", device=0)
        loader = int(worker.line())
        holders = {holder.pid for holder in device_locks.holders(tmp_path, 0)}

        os.kill(worker.pid, signal.SIGKILL)
        servant.exit()

        lock = device_locks.take_device(tmp_path, 0, claim="the next", within_s=DEADLINE_S)
        assert holders == {worker.pid, loader}
        assert lock is not None
        lock.release()
