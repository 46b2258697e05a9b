"""Write docs/features.md and docs/refusals.md from the tables that the tests prove.

python -m tools.make_pages
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.features import catalogue, refusals
from tests.features.feature import Feature

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

What nobody can see from outside is in [assumptions](assumptions.md).
"""

REFUSALS = """\
# What is refused

Made by `python -m tools.make_pages` from `tests/features/refusals.py`; change that.
`tests/features/test_refusals.py` reproduces each sentence.

Under `pliant run` a script that is refused ends the job with exit code 2 and this sentence, with
the line of the script behind it; under `python` it is a `ConfigError` or a `UsageError`. Names and
numbers are those of the examples.
"""


def features_page() -> str:
    """Return the page of features."""
    parts = [FEATURES]
    for group, features in catalogue.GROUPS.items():
        rows = [row_of(feature) for feature in features]
        rows += [
            (row.feature[1], "refused", row.instead)
            for table in refusals.TABLES.values()
            for row in table
            if row.feature is not None and row.feature[0] == group
        ]
        parts.append(f"## {group.capitalize()}\n\n{table_of(('what', 'result', 'note'), rows)}")
    return "\n".join(parts)


def refusals_page() -> str:
    """Return the page of refusals."""
    parts = [REFUSALS]
    for title, table in refusals.TABLES.items():
        rows = [(quoted(row.sentence), row.when, row.instead) for row in table]
        parts.append(f"## {title}\n\n{table_of(('sentence', 'when', 'instead'), rows)}")
    return "\n".join(parts)


def row_of(feature: Feature) -> tuple[str, str, str]:
    """Return a feature's line, with the test that shows it if that is one of its own."""
    notes = [feature.note] if feature.note else []
    if feature.proof:
        notes.append(f"`{feature.proof.partition('::')[2]}`")
    return feature.name, feature.result, "; ".join(notes)


def quoted(sentence: str) -> str:
    """Return a sentence as code, which Markdown leaves alone."""
    marks = "``" if "`" in sentence else "`"
    return f"{marks}{sentence}{marks}"


def table_of(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


PAGES = {"docs/features.md": features_page, "docs/refusals.md": refusals_page}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())


if __name__ == "__main__":
    main()
