"""All that needs a GPU, in stages of minutes: ``make test-gpu``, by the machine's own Python.

What nothing else can show comes first.  A stage that fails stops none of the others; each writes a
line of JSON, and what it printed, into ``$OUT`` (``build/gpu`` by default).  Needs no network, and
of Python packages pliant's own and pytest's.

    make test-gpu PYTHON=python3
    make test-gpu STAGES="facts elastic"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

PYTEST = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "-p", "no:cacheprovider", "--timeout=240")
STEADY = ("-m", "benchmarks.steady", "--device", "cuda", "--sizes", "1", "--slots", "8")

STAGES: dict[str, tuple[float, tuple[str, ...]]] = {
    "facts": (60, ("-m", "pliant", "doctor")),
    "devices": (120, (*PYTEST, "tests/gpu/test_devices.py")),
    "alone": (240, (*PYTEST, "tests/gpu/test_alone.py")),
    "elastic": (420, (*PYTEST, "tests/gpu/test_elastic.py", "-k", "host")),
    "faults": (420, (*PYTEST, "tests/gpu/test_faults.py")),
    "nccl": (300, (*PYTEST, "tests/gpu/test_elastic.py", "tests/gpu/test_nccl.py", "-k", "nccl")),
    "steady": (420, (*STEADY, "--reductions", "exact", "fast")),
}
"""By name, the most seconds, and what Python is given."""


def main(names: list[str]) -> int:
    """Run the stages of these names, or all."""
    if unknown := [name for name in names if name not in STAGES]:
        sys.stderr.write(f"no stage is called {unknown[0]}; there are {', '.join(STAGES)}\n")
        return 2
    out = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or STAGES:
        limit_s, arguments = STAGES[name]
        began = time.monotonic()
        with (out / f"{name}.log").open("w") as log:
            stage = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                code = stage.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = ended(stage)
        line = json.dumps({"stage": name, "code": code, "s": round(time.monotonic() - began, 1)})
        with (out / "stages.jsonl").open("a") as stages:
            stages.write(line + "\n")
        tail = (out / f"{name}.log").read_text(errors="replace").splitlines()[-3:]
        sys.stdout.write("\n".join((line, *tail, "")))
        sys.stdout.flush()
        failed += code != 0
    return min(failed, 1)


def ended(stage: subprocess.Popen[bytes]) -> int:
    """End one that takes too long: pytest ends the processes of its tests at SIGTERM."""
    stage.terminate()
    try:
        stage.wait(20)
    except subprocess.TimeoutExpired:
        stage.kill()
        stage.wait()
    return 124


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
