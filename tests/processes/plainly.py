"""What plain Python says of a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def said_by_python(script: Path) -> str:
    """Return the standard error of ``python script``; tracebacks differ by version."""
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    return done.stderr
