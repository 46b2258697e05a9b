"""Checked: what a script came to under one history, and in what it differs from the script alone.

Owns the histories that ``pliant check`` plays, what is asked of a script in each, and which of the
differences that its recordings show is the first.  Must not know how a history is played or how a
recording is made (``engine.recording``), nor how all this is shown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pliant.core.text import in_words

CHECK_VARIABLE = "PLIANT_CHECK"
"""In the environment of a script that is being checked: its orders."""

FEWEST_STEPS = 4
"""A change needs steps before it and behind it."""

MOST_NAMED = 5
"""Variables that one sentence names."""

ALIKE = 30
"""Notes that begin alike, but for numbers, are of one cause; the last of them is told."""

ENDS = ("it can go on after ", "without checkpoints ", "the last replica that had the state ")
"""How closing lines begin that say what became of a run, and not why."""

SENTENCES = {
    "call": "{who} calls session.steps({value}), alone it is {was}",
    "samples": "at step {step} {name} has other samples on {who} than alone",
    "loss": "at step {step} {name} has the loss {value} on {who}, alone {was}",
    "gradient": "at step {step} the gradient differs on {who} from that alone",
    "state": "{name} after step {step} is {value} on {who}, alone {was}",
    "logged": "session.log of step {step} says {name}={value}, alone {was}",
    "printed": "after step {step} the leader prints {value!r}, alone {was!r}",
}
"""Of each kind of difference; at one step a cause stands before what follows from it."""

KINDS = (*SENTENCES, "steps", "file", "refused")
TRAINED = ("samples", "loss", "gradient", "state")
"""Without these the weights are the same."""

_SUMS = "a replica computes only some micro-batches: what is added up over them is not the step's"
HINTS = {
    "samples": "what the dataset returns depends on more than the index, such as an attribute, "
    "shared memory that changes while loaders fetch ahead, a generator or a file of its own",
    "loss": "the loss depends on something beside the weights and the samples that is not the same "
    "everywhere: what earlier tails have changed and a joiner has not (an attribute of a class or "
    "module, an iterator, a closure), or a generator of the script's own; compute it from "
    "step.index, or give it to extra_state=",
    "logged": _SUMS,
    "printed": _SUMS,
    "file": "several replicas write it, a killed one had not flushed it, or who writes it has not "
    "run the earlier tails: write rows with session.open_log(path), other files only where "
    "session.leader is true, and of what tails have kept only what is in extra_state=",
}
"""What a difference of these kinds mostly comes from, if nothing else names a cause."""

ON_LEADER = ("logged", "printed")
"""What is said by one replica: nothing at all is a difference, too."""

_NUMBER = re.compile(r"\d+([.:,]\d+)*([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHold:
    """When a script under check waits, and what breaks in it."""

    hold_from: int | None = None
    """From this boundary on it trains only together with ``hold_for``; None: it never waits."""
    hold_for: int = 0
    """Replicas, with itself; 0: it waits until it is told to stop."""
    holds_once: bool = False
    """Once they are together it waits no more."""
    fault: str = ""
    """A plan of ``pliant.testing.faults``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOrders(CheckHold):
    """What a script under check is asked."""

    recordings: str
    """Directory for what it records; once it has a file ``go`` nobody waits any more."""
    steps: int
    """After so many it ends as if that were the total."""
    checkpoints: str
    """Place in which it keeps them, wherever it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckHistory(CheckHold):
    """What happens to the replicas of a script."""

    name: str
    words: str
    start: int
    least: int = 1
    act: str = ""
    """What is asked of the job once it waits: ``scale`` or ``suspend``."""


def histories(steps: int, *, is_durable: bool) -> list[CheckHistory]:
    """Return those for a script that trains so many steps."""
    half, late = steps // 2, 2 * steps // 3
    last = (late + steps) // 2
    both = "two replicas from the start"
    join = f"one replica; after step {late} another joins, at step {last} the first is killed"
    kill = f"two replicas; at step {half} the older is killed and replaced"
    stop = f"two replicas; suspended after step {late} and resumed"
    fault, lone = f"r1@vote:{half}=SIGKILL", f"r1@vote:{last}=SIGKILL"
    joins = CheckHistory(name="join", words=join, start=1, hold_from=late, hold_for=2, act="scale")
    found = [
        CheckHistory(name="two", words=both, start=2, least=2),
        replace(joins, fault=lone, holds_once=True),  # so that who joined comes to lead
        CheckHistory(name="kill", words=kill, start=2, hold_from=1, hold_for=2, fault=fault),
        CheckHistory(name="stop", words=stop, start=2, least=2, hold_from=late, act="suspend"),
    ]
    return found if is_durable else found[:-1]


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file that a history has left."""

    digest: str
    lines: tuple[str, ...] = ()
    """Of a text that is not too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one history has come to."""

    lines: Sequence[Mapping[str, Any]]
    """Of all recordings; see ``engine.recording``."""
    files: Mapping[str, FileSeen] = field(default_factory=dict)
    """By path; those that it has written or changed."""
    notes: tuple[str, ...] = ()
    """What the sessions said to people."""
    fault: str = ""
    """Why it did not end well; empty: it did."""

    @property
    def began(self) -> Mapping[str, Any] | None:
        """What its first session is like; None: it made none."""
        return next((line for line in self.lines if line["kind"] == "began"), None)

    @property
    def committed(self) -> int:
        """Steps that it has committed."""
        return max((one["step"] + 1 for one in self.lines if one["kind"] == "gradient"), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it is alone."""

    kind: str
    step: int
    """-1: before the first one."""
    name: str
    sentence: str
    mask: str = ""
    """Of a printed line, or the name of a file: itself without its numbers."""
    variables: tuple[str, ...] = ()
    """Of the script, which were others at that place."""


class _Fact(NamedTuple):
    kind: str
    step: int
    name: str
    place: int
    value: Any
    who: str
    variables: Mapping[str, str]


def differences(alone: Trace, other: Trace) -> list[Difference]:
    """Return in what a history differs from the script alone, the first and its causes first."""
    known = {fact[:4]: fact for fact in _facts(alone)}
    found, said = [], set()
    for fact in _facts(other):
        said.add(fact[:4])
        was = known.get(fact[:4])
        if was is None and fact.kind in ON_LEADER:
            was = fact._replace(value="")
        if was is not None and was.value != fact.value:
            found.append(_difference(was, fact))
    for key, was in known.items():
        if was.kind in ON_LEADER and key not in said and was.step < other.committed:
            found.append(_difference(was, was._replace(value="")))
    found.sort(key=lambda one: (one.step, KINDS.index(one.kind)))
    if other.fault:
        one = Difference(kind="refused", step=other.committed, name="", sentence=other.fault)
        found.insert(0, one)
    elif other.committed != alone.committed:
        text = f"it ended after {other.committed} steps, alone after {alone.committed}"
        found.append(Difference(kind="steps", step=other.committed, name="", sentence=text))
    return [*found, *_of_files(alone, other)]


def without_noise(found: Iterable[Difference], noise: Iterable[Difference]) -> list[Difference]:
    """Leave out what differs between two runs of the script alone, too: times, names with one."""
    known = {(one.kind, one.mask or one.name) for one in noise}
    return [one for one in found if (one.kind, one.mask or one.name) not in known]


def of_training(found: Iterable[Difference]) -> list[Difference]:
    """Return those by which the weights differ, or may."""
    return [one for one in found if one.kind in TRAINED]


def causes(alone: Trace, found: Sequence[Difference], notes: Iterable[str]) -> list[str]:
    """Return what may be behind differences: what sessions said, and the script's variables."""
    known = " ".join((*alone.notes, *(one.sentence for one in found)))
    new = (note for note in notes if note not in known and not note.startswith(ENDS))
    alike = {_NUMBER.sub("#", note)[:ALIKE]: note for note in new}
    said = list(alike.values())
    first = next(iter(of_training(found) or found), None)
    if first is not None and first.variables:
        names = in_words(first.variables, MOST_NAMED)
        said.append(
            f"variables of the script with other values there than alone: {names}. A replica "
            "computes only some micro-batches, and a joiner has run no earlier tail: a value "
            "that is carried on in a variable differs between replicas"
        )
    if not said and first is not None and first.kind in HINTS:
        said.append(HINTS[first.kind])
    return said


def _facts(trace: Trace) -> Iterator[_Fact]:
    """Yield what a trace says, a micro-batch before its loss."""
    printed: defaultdict[int, str] = defaultdict(str)
    slots: dict[str, Mapping[str, str]] = {}
    for line in trace.lines:
        kind, step, who = line["kind"], line["step"], line["replica"]
        variables = line.get("variables") or (slots.get(who, {}) if kind == "loss" else {})
        if kind == "samples":
            slots[who] = variables
        if kind == "printed":
            printed[step] += line["text"]
        place = 0 if kind in ON_LEADER else line["place"]
        for name, value in line.get("values", {}).items():
            yield _Fact(kind, step, name, place, value, who, variables)
    for step, text in printed.items():
        for number, shown in enumerate(text.splitlines()):
            yield _Fact("printed", step, str(number), 0, shown, "", {})


def _difference(was: _Fact, fact: _Fact) -> Difference:
    text = SENTENCES[fact.kind]
    if str(fact.value).startswith("digest "):  # which tells a reader nothing
        text = "{name} after step {step} differs on {who} from that alone"
    sentence = text.format(was=was.value or "nothing", **fact._asdict())
    variables = was.variables, fact.variables
    return Difference(
        kind=fact.kind,
        step=fact.step,
        name=fact.name,
        sentence=sentence.replace("after step -1", "before the first step"),
        mask=_NUMBER.sub("#", was.value or fact.value) if fact.kind == "printed" else "",
        variables=tuple(
            name for name, word in variables[0].items() if variables[1].get(name, word) != word
        ),
    )


def _of_files(alone: Trace, other: Trace) -> Iterator[Difference]:
    for path in sorted({*alone.files, *other.files}):
        was, now = alone.files.get(path), other.files.get(path)
        if was is None or now is None:
            text = f"{path} is not there" if now is None else f"{path} is there, alone it is not"
        else:
            text = f"{path} has other content{_where(was.lines, now.lines)}"
        if was != now:
            mask = _NUMBER.sub("#", path)
            yield Difference(kind="file", step=alone.committed, name=path, sentence=text, mask=mask)


def _where(was: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Say in which line two texts differ first."""
    for number, before in enumerate(was, start=1):
        line = now[number - 1] if number <= len(now) else "(its end)"
        if line != before:
            return f": line {number} is {line[:60]!r}, alone {before[:60]!r}"
    return f": it has {len(now)} lines, alone {len(was)}" if len(now) > len(was) else ""
