"""Write the pages of docs/ and the files of deploy/ that are made from the source and from tests.

python -m tools.make_pages
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli import captures
from tests.features import catalogue, several_workers, topics
from tests.features.feature import Feature
from tools import deploy_files, monitoring, reference_pages
from tools.reference_pages import table_of

from pliant.core.job.transitions import JOB_PHASES, REPLICAS
from pliant.core.membership.transitions import MEMBERS, PHASES
from pliant.core.transitions import Machine

ROOT = Path(__file__).resolve().parents[1]

FEATURES = """\
# What works, and how exactly

Made by `python -m tools.make_pages` from the tables in `tests/features/`; change those.

- **exact**: the same bits, whoever joins, drains or dies, in parameters, buffers and the states of
  optimizers and schedulers.
- **fast**: the same on all replicas of a run; two runs agree up to rounding.
- **refused**: ends with one sentence, when the session is made or in the first step that needs it;
  they are all on the page [what is refused](refusals.md).

Where no other test is named, two show a row, and read the same table as this page.
`tests/features/test_any_history.py` trains all features of a group in one job, from one replica to
three, the first one killed and another drained, and compares a digest of each feature with that of
the job alone. `tests/features/test_against_plain_loops.py` compares each with a loop in plain
PyTorch: gradients to 1e-6 of what was added up (16-bit and cancelling ones to what their format
allows), and weights bit for bit after a step from the same gradient.

All of it holds in replicas of [several workers](../howto/shard-a-replica.md), of which the third
column says where not: it is shown in replicas of two workers by the same tests, or by others that
`tests/features/several_workers.py` names. Models that are trained by the first of the two above are
also put under `fully_shard` there, which changes no bits; "not under `fully_shard`" says what ends
with a sentence then, of pliant or of torch, and works as long as that part of the model is whole.

What nobody can see from outside is in [exactness](../explanation/exactness.md).
"""

COLUMNS = ("what", "result", "several workers", "note")

STATES = """\
# States, and what may follow them

Made by `python -m tools.make_pages` from the tables of the core's state machines; change those.
Each machine sets its state in one function, which asks its table: what is not here cannot happen,
and is a `TransitionError` that tells the last events of its object.

A cause in `code` is what a worker or the coordinator says; the others are what the core concludes.
The diagrams leave out where a state stays; the tables have it all. How the parts play together is
in [the protocol](../explanation/protocol.md).
"""

MACHINES: tuple[tuple[Machine[Any], str], ...] = (
    (JOB_PHASES, "One run from its first process to its exit code: `core/job/`."),
    (REPLICAS, "One replica as its job keeps it; the gone are forgotten: `core/job/`."),
    (
        PHASES,
        "Who trains together, as the coordinator sees it: `core/membership/state.py`. What is lost "
        "stays so: a restore opens another membership, which is empty, in a new lineage.",
    ),
    (
        MEMBERS,
        "One worker's side, read off what it knows: `core/membership/member.py`. Commands may come "
        "at any time and be too late; then the state stays.",
    ),
)
"""Every machine of the core, and what to say of it first."""


def features_page() -> str:
    """Return the page of features."""
    parts = [FEATURES]
    for group, features in catalogue.GROUPS.items():
        rows = [row_of(feature) for feature in features]
        rows += [(name, "refused", "", do) for name, do in catalogue.refused_of(group)]
        parts.append(f"## {group.capitalize()}\n\n{table_of(COLUMNS, rows)}")
    return "\n".join(parts)


def states_page() -> str:
    """Return the page of states."""
    parts = [STATES]
    for machine, said in MACHINES:
        table = table_of(("state", "cause", "what may follow"), moves_of(machine))
        diagram = "\n".join(f"    {line}" for line in diagram_of(machine))
        parts.append(
            f"## {machine.name.capitalize()}\n\n{said}\n\n"
            f"```mermaid\nstateDiagram-v2\n{diagram}\n```\n\n{table}"
        )
    return "\n".join(parts)


def diagram_of(machine: Machine[Any]) -> Iterator[str]:
    """Yield the lines of a Mermaid diagram: one arrow from a state to another, with its causes."""
    for state in machine.rows:
        if named(state) != state:
            yield f'state "{state}" as {named(state)}'
    yield f"[*] --> {named(machine.initial)}"
    for state, row in machine.rows.items():
        for after in machine.rows:
            causes = [str(cause) for cause, following in row.items() if after in following]
            if causes and after is not state:
                yield f"{named(state)} --> {named(after)}: {', '.join(causes)}"
    for state in machine.rows:
        if state in machine.terminal:
            yield f"{named(state)} --> [*]"


def named(state: str) -> str:
    """Return a state as Mermaid can name it."""
    return state.replace(" ", "_")


def moves_of(machine: Machine[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the table of a machine in words, causes that lead to the same in one line."""
    for state, row in machine.rows.items():
        alike: dict[frozenset[Any], list[str]] = {}
        for cause, following in row.items():
            word = f"`{cause}`" if cause[0].isupper() else str(cause)
            alike.setdefault(following, []).append(word)
        if not row:
            yield str(state), "", "nothing"
        for following, causes in alike.items():
            words = ["stays" if after is state else after for after in machine.rows]
            can = [w for w, after in zip(words, machine.rows, strict=True) if after in following]
            yield str(state), ", ".join(causes), " or ".join(can)


def row_of(feature: Feature) -> tuple[str, ...]:
    """Return a feature's line, with the test that shows it if that is one of its own."""
    notes = [feature.note] if feature.note else []
    if feature.proof:
        notes.append(f"`{feature.proof.partition('::')[2]}`")
    return feature.name, feature.result, several_workers.mark_of(feature.name), "; ".join(notes)


PAGES = {
    "docs/reference/features.md": features_page,
    "docs/reference/refusals.md": topics.page,
    "docs/reference/states.md": states_page,
    "docs/reference/screens.md": captures.page,
    "docs/reference/commands.md": reference_pages.cli_page,
    "docs/reference/files.md": reference_pages.files_page,
    "docs/reference/metrics.md": reference_pages.metrics_page,
    "docs/reference/events.md": reference_pages.events_page,
    "docs/reference/trainer-options.md": reference_pages.trainers_page,
}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
    for name, text in (deploy_files.files() | monitoring.files()).items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
