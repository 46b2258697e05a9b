"""What came of the oldest lines of a run's ledgers, which are gone: a file beside them.

Owns its form.  Knows nothing of how it is found out (``condensing``), nor of what it proves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pliant.machine import run_files
from pliant.machine.files import PRIVATE, read_own, replace_file
from pliant.observe.ledgers import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """The audit of everything before one step of one lineage."""

    lineage: int
    until: int
    """The first step that it does not tell of."""

    unused: int = 0
    duplicates: int = 0
    superseded: int = 0
    uncommitted: int = 0
    problems: tuple[str, ...] = ()
    """What was wrong; what was not found wrong is proved."""

    @property
    def end(self) -> Key:
        """Where it ends."""
        return self.lineage, self.until


@cache
def _adapter() -> TypeAdapter[Condensed]:
    return TypeAdapter(Condensed)


def read_condensed(out: Path) -> Condensed | None:
    """Return what there is of a run; None: its ledgers are whole.

    Raises:
        OSError: it cannot be read now, or is no file of ours.
    """
    try:
        return _adapter().validate_json(read_own(out / run_files.CONDENSED))
    except FileNotFoundError:
        return None
    except ValidationError:
        said = f"{run_files.CONDENSED} cannot be read: what was audited of the oldest steps is lost"
        return Condensed(lineage=0, until=0, problems=(said,))


def write_condensed(out: Path, condensed: Condensed) -> None:
    """Replace it, durably: what it tells of is removed next.

    Raises:
        OSError: the storage does not take it.
    """
    data = _adapter().dump_json(condensed)
    replace_file(out / run_files.CONDENSED, data, mode=PRIVATE, is_durable=True)
