"""Inputs: what a run was made from, in words that a checkpoint keeps and a resume compares.

Owns which differences are refused (other data behind the same path) and which are told (an edited
module or file, another hash seed).  Must not know where the words are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pliant.core.counts import counted
from pliant.core.errors import ConfigError
from pliant.engine.record.files import MAX_NAMED, differing, here
from pliant.engine.worker import script_files

MAX_KEPT = 200
"""Of each kind."""

ANYWAY = "--from-checkpoint anyway (a script that runs alone: PLIANT_FROM_CHECKPOINT=anyway)"


class Inputs:
    """Of one replica, in one life."""

    def __init__(
        self, samples: Mapping[int, str], noted: Callable[[str], None], *, goes_on_anyway: bool
    ) -> None:
        """``samples``: a few, in words; ``noted`` is told what differs; other data are that, too,
        if a resume ``goes_on_anyway``.
        """
        self._samples = {str(index): word for index, word in samples.items()}
        self._modules = dict(sorted(script_files.own_modules().items())[:MAX_KEPT])
        self._noted, self._goes_on_anyway = noted, goes_on_anyway

    def pack(self) -> bytes:
        """Return what a resume compares."""
        record = here()
        reads = {} if record is None else dict(sorted(record.reads().items())[:MAX_KEPT])
        hashes = str(hash("pliant"))  # another for another PYTHONHASHSEED
        kept = {"samples": self._samples, "modules": self._modules, "reads": reads, "hash": hashes}
        return json.dumps(kept).encode()

    def compare(self, packed: bytes) -> None:
        """Tell what has changed since a checkpoint was written.

        Raises:
            ConfigError: the dataset has other samples.
        """
        mine, theirs = json.loads(self.pack()), json.loads(packed)
        for index, word in mine["samples"].items():
            if theirs["samples"].get(index, word) != word:
                said = f"sample {index} of the dataset is not what it was when the run was kept"
                if not self._goes_on_anyway:
                    raise ConfigError(
                        f"{said}: other data lie behind the same path; put them back, or go on "
                        f"with these: {ANYWAY}"
                    )
                self._noted(said)
                break
        changed = [
            name for name, at in mine["modules"].items() if theirs["modules"].get(name, at) != at
        ]
        changed += [script_files.shown(path) for path in differing(mine["reads"], theirs["reads"])]
        if changed:
            more = f" and {counted(len(changed) - MAX_NAMED, 'other')}" * (len(changed) > MAX_NAMED)
            self._noted(
                f"since the checkpoint was written {', '.join(changed[:MAX_NAMED])}{more} changed; "
                "the run goes on with what is there now"
            )
        if mine["hash"] != theirs["hash"]:
            self._noted(
                "PYTHONHASHSEED is another than when the run was kept: sets are iterated over in "
                "another order"
            )
