"""What a change of a job's size costs: the ways of resizing that are compared with each other.

Owns the figures, with where they come from.  Knows nothing of when a job is resized.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core.errors import ConfigError

START_S = 10.0
"""From starting a process until its script can train, imports and data included; the same for all
ways of resizing, as it is the script's."""

RESTART_S = 30.0
"""Of a restart from a checkpoint, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCosts:
    """One way of resizing, in seconds."""

    name: str

    is_elastic: bool = True
    """Whether a job that can have several sizes is given several; else it has ``devices``."""

    can_suspend: bool = True
    """Whether a job may be stopped for others, to go on from its checkpoint later."""

    keeps_steps: bool = False
    """Whether those who are left go on from memory when others are lost."""

    redoes_step: bool = False
    """Whether they do the step again in which the loss came."""

    joins_beside: bool = False
    """Whether those who join start while the others train on."""

    join_pause_s: float = 0.0
    """Of those who train, when others join them; in place only."""

    join_pause_s_per_gb: float = 0.0
    """The same for each gigabyte of state."""

    leave_pause_s: float = 0.0
    loss_pause_s: float = 0.0
    restart_s: float = RESTART_S
    """From the stop until it trains again: what a change costs that is not made in place, and
    what going on from a checkpoint costs in any case."""

    checkpoint_every_s: float = 600.0
    """Of training, between two checkpoints; what is done since is lost with the state."""

    is_by_hand: bool = False
    """Whether a person sees to each stop of a job."""


IN_PLACE = ResizeCosts(
    name="in-place",
    keeps_steps=True,
    redoes_step=True,
    joins_beside=True,
    join_pause_s=0.2,
    join_pause_s_per_gb=0.5,
    leave_pause_s=0.073,
    loss_pause_s=0.53,
)
"""Medians of benchmarks/results/resize_2xxeon_2026-11-21.md: a join of 116 MB 0.259 s, a leave on
notice 0.073 s, a kill 0.53 s.  A gigabyte more of state: 57 ms for 116 MB from one process of a
machine to others."""

RESTART = ResizeCosts(name="restart")
"""Save, stop every process, start again at the new size: HyperPod's elastic agent, torchrun."""

PREEMPT = ResizeCosts(name="preempt", is_elastic=False, is_by_hand=True)
"""Jobs of one size; whoever is more important stops a job as a whole."""

STATIC = ResizeCosts(name="static", is_elastic=False, can_suspend=False, is_by_hand=True)
"""Jobs of one size that keep what they have until they end."""

WAYS = {one.name: one for one in (IN_PLACE, RESTART, PREEMPT, STATIC)}


def costs_of(text: str) -> ResizeCosts:
    """Read a way of resizing: ``in-place``, or one with the seconds of a restart: ``restart:60``,
    and of training between two checkpoints: ``restart:60:300``.

    ``pause:5`` is one in which every change stops the job for so long, and nothing is lost.

    Raises:
        ConfigError: there is no such way.
    """
    name, colon, seconds = text.strip().partition(":")
    if name == "pause" and colon:
        pause_s = _seconds(text, seconds)
        return ResizeCosts(
            name=text.strip(),
            keeps_steps=True,
            joins_beside=True,
            join_pause_s=pause_s,
            leave_pause_s=pause_s,
            loss_pause_s=pause_s,
        )
    if name not in WAYS:
        raise ConfigError(
            f"{text!r} is no way of resizing; there are {', '.join(WAYS)}, restart:SECONDS and"
            " pause:SECONDS"
        )
    if not colon:
        return WAYS[name]
    restart, colon, every = seconds.partition(":")
    way = replace(WAYS[name], name=text.strip(), restart_s=_seconds(text, restart))
    if not colon:
        return way
    return replace(way, checkpoint_every_s=max(_seconds(text, every), 1.0))


def _seconds(text: str, seconds: str) -> float:
    if not seconds.replace(".", "", 1).isdecimal() or len(seconds) > 9:
        raise ConfigError(f"{text!r} is no way of resizing; write seconds behind it: restart:60")
    return float(seconds)
