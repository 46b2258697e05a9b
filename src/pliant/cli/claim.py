"""``pliant claim``: says where a claim stands, to a person or to a program.

Owns the words on the terminal and the JSON lines.  Knows nothing of how a claim is held
(``run.pool_claim``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pliant.cli.printing import say
from pliant.run.pool_claim import ClaimConfig, run_claim


class _ClaimPrinter:
    """Prints what has changed."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._last: tuple[str, str] | None = None

    def __call__(self, state: str, text: str, **values: Any) -> None:
        """Say where the claim stands, once."""
        if (state, text) == self._last:
            return
        self._last = (state, text)
        if self._is_json:
            print(json.dumps({"state": state, "reason": text, **values}), flush=True)
        else:
            say(text)


def claim(config: ClaimConfig, environ: Mapping[str, str], *, is_json: bool) -> int:
    """Claim devices, hold them for as long as asked, give them back; return the exit code.

    Raises:
        ConfigError: no pool runs, or it refuses the claim.
    """
    return run_claim(config, environ, _ClaimPrinter(is_json=is_json))
