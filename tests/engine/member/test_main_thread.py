"""Where the main thread is, as another one sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.values import NO_GENERATION, Generation
from pliant.engine.member import main_thread
from pliant.engine.member.inner_channel import WorkerIsAt
from pliant.engine.member.main_thread import MainThreadWatch, ReplicaThreads

G = Generation(3)


def seen(watch: MainThreadWatch, wait: Callable[[threading.Event], object]) -> Whereabouts:
    """Return where another thread sees this one while it waits."""
    found: list[Whereabouts] = []
    over = threading.Event()

    def look() -> None:
        threading.Event().wait(0.05)
        found.append(watch.locate())
        over.set()

    threading.Thread(target=look).start()
    wait(over)
    return found[0]


def compiled(file: str) -> Callable[[threading.Event], object]:
    """Return a function that waits in a file of this name."""
    names: dict[str, Any] = {}
    exec(compile("def wait(event): event.wait()", file, "exec"), names)
    found: Callable[[threading.Event], object] = names["wait"]
    return found


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("/home/me/train.py", Whereabouts.SCRIPT),
        ("/venv/torch/nn/functional.py", Whereabouts.SCRIPT),
        ("/venv/torch/distributed/distributed_c10d.py", Whereabouts.REPLICA),
        ("/venv/pliant/engine/member/runtime.py", Whereabouts.ENGINE),
    ],
)
def test_the_innermost_frame_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, file: str, where: Whereabouts
) -> None:
    monkeypatch.setattr(main_thread, "STILL_S", 0.0)

    assert seen(MainThreadWatch(), compiled(file)) is where


def test_who_waits_for_its_replica_has_stood_still_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = MainThreadWatch()

    def wait(over: threading.Event) -> None:
        with watch.waiting(Whereabouts.REPLICA):
            over.wait()

    assert seen(watch, wait) is Whereabouts.ENGINE
    monkeypatch.setattr(main_thread, "STILL_S", 0.0)
    assert seen(watch, wait) is Whereabouts.REPLICA


def test_only_answers_to_the_last_question_count() -> None:
    threads = ReplicaThreads((1,))
    threads.own = SimpleNamespace(locate=lambda: Whereabouts.REPLICA)  # type: ignore[assignment]
    first = threads.ask(1)
    assert first is not None
    threads.hear(WorkerIsAt(place=1, number=first.number, where=Whereabouts.SCRIPT))

    assert threads.conclude(NO_GENERATION, G) == (NO_GENERATION, 1)
    second = threads.ask(1)
    assert second is not None
    assert threads.conclude(NO_GENERATION, G) == (NO_GENERATION, None)
    threads.hear(WorkerIsAt(place=1, number=second.number, where=Whereabouts.MEMBERS))
    assert threads.conclude(NO_GENERATION, G) == (G, None)


def test_who_owes_an_answer_is_not_asked_again() -> None:
    threads = ReplicaThreads((1,))
    first = threads.ask(1)
    assert first is not None

    assert threads.ask(1) is None
    threads.hear(WorkerIsAt(place=1, number=first.number, where=Whereabouts.SCRIPT))
    assert threads.ask(1) is not None


def test_a_builder_that_waits_says_nothing_of_the_main_thread() -> None:
    watch, is_in, built = MainThreadWatch(), threading.Event(), threading.Event()

    def build() -> None:
        with watch.waiting(Whereabouts.REPLICA):
            is_in.set()
            built.wait()

    builder = threading.Thread(target=build)
    builder.start()
    is_in.wait()
    with watch.waiting(Whereabouts.REPLICA):
        built.set()
        builder.join()

    assert watch._said is None
