"""``train_model.py`` with a witness: its workers say which device they use, and when.

python tests/pool/train_in_pool.py DIRECTORY --model gpt --steps 12 ...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.pool.witness import beat

if __name__ == "__main__":
    beat(Path(sys.argv.pop(1)))
    script = Path(__file__).resolve().parents[1] / "processes" / "train_model.py"
    runpy.run_path(str(script), run_name="__main__")
