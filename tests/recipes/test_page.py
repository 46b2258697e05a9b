"""The page on recipes, followed from an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.pages.blocks import ROOT, read_page

PAGE = ROOT / "docs/howto/train-by-a-recipe.md"


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers peft")
def test_ten_chats_become_a_model_that_repeats_them(tmp_path: Path) -> None:
    around = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    around["PATH"] = f"{Path(sys.executable).parent}:{around['PATH']}"
    here = tmp_path / "empty"
    here.mkdir()
    blocks = [b for b in read_page(PAGE).blocks if b.language in ("sh", "python")]
    said = ""
    for block in blocks[1:]:  # the first installs
        text = "\n".join(block.lines)
        words = ["bash", "-ec", text] if block.language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(words, cwd=here, env=around, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout

    assert said.strip() == "7"
