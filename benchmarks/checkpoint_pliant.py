"""One worker of pliant's side of ``benchmarks.checkpoint``; run by ``pliant run`` only.

Owns the clocks around what the training thread does for a save.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

import pliant
from benchmarks.checkpoint_course import Course, Saved, timed
from benchmarks.checkpoint_dcp import options
from benchmarks.model import Tokens, build, loss_of
from benchmarks.turns import Player
from pliant.checkpoint.writer import Copier
from pliant.core.membership.member import Member
from pliant.engine.state.saving import Saver


class Watched:
    """Watches the session's own saver: every call of the training thread goes through here."""

    def __init__(self) -> None:
        self.course: Course | None = None
        self._saver: Saver | None = None
        self._copy_s = 0.0
        self._newest = ("", 0)
        save, copy = Saver.save, Copier.copy

        @functools.wraps(copy)
        def timed_copy(copier: Copier, *arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return copy(copier, *arguments, **more)
            finally:
                self._copy_s = time.perf_counter() - began

        @functools.wraps(save)
        def timed_save(
            saver: Saver, member: Member, place: tuple[int, int], *, is_needed: bool
        ) -> None:
            self._saver = saver
            began, cpu_s = time.perf_counter(), time.process_time()
            save(saver, member, place, is_needed=is_needed)
            stall_s = time.perf_counter() - began
            name = f"step-{member.committed:08d}-l{member.lineage}"
            self._newest = (name, member.committed)
            if self.course is not None:
                self.course.saved(
                    Saved(
                        committed=member.committed,
                        stall_s=stall_s,
                        copy_s=self._copy_s,
                        began_at=began,
                        cpu_s=cpu_s,
                    )
                )

        for owner, name, call in ((Copier, "copy", timed_copy), (Saver, "save", timed_save)):
            setattr(owner, name, call)

    @property
    def is_settled(self) -> bool:
        """Whether this replica has done its part; the leader's is to publish, too."""
        return self._saver is None or self._saver.is_settled

    def restore(self) -> float:
        """Read the newest checkpoint as the origin of a restored run does."""
        if self._saver is None:
            raise AssertionError("a restore comes after the saves")
        return timed(functools.partial(self._saver.restore, *self._newest))

    def tidy(self) -> None:
        """Do nothing: ``keep=1`` does."""


def main() -> None:
    """Train until the driver is gone."""
    chosen = options()
    watched = Watched()
    pliant.seed(1)
    model = build(chosen.params)
    player = Player(chosen.turns, chosen.side)
    course = watched.course = Course(player=player, saving=watched, every=chosen.every)
    with pliant.Session(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4),
        dataset=Tokens(samples=4096, length=chosen.length),
        global_batch_size=chosen.slots * chosen.micro_batch,
        micro_batch_size=chosen.micro_batch,
        max_grad_norm=1.0,
        checkpoint=pliant.Checkpoint(chosen.place, every=f"{chosen.every}steps", keep=1),
    ) as session:
        for step in session.steps(1_000_000):
            with session.busy(max_s=3600):
                course.boundary(step.index)
            for x, y in step:
                step.backward(loss_of(model, x, y))


if __name__ == "__main__":
    main()
