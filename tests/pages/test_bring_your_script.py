"""What the page shows of each way to train is true: what stands after trains."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/bring-your-script.md"
SECTIONS = ["a plain loop", "torchrun", "a Trainer of Hugging Face", "Lightning", "Accelerate"]
NEEDS = {"a Trainer of Hugging Face": "transformers", "Lightning": "lightning"}
REAL = {**NEEDS, "Accelerate": "accelerate"}

STAND_INS = {
    "accelerate/__init__.py": "from accelerate.accelerator import Accelerator\n",
    "accelerate/accelerator.py": "class Accelerator:\n    pass\n",
    "lightning/__init__.py": """
        import torch
        from lightning.pytorch.trainer.trainer import Trainer
        class LightningModule(torch.nn.Module):
            pass
    """,
    "lightning/pytorch/__init__.py": "",
    "lightning/pytorch/trainer/__init__.py": "",
    "lightning/pytorch/trainer/trainer.py": """
        class Trainer:
            def __init__(self, **options):
                pass
    """,
    "transformers/__init__.py": """
        import torch
        from types import SimpleNamespace
        from torch.utils.data import default_collate as default_data_collator
        from transformers.trainer import Trainer
        LlamaConfig = TrainingArguments = SimpleNamespace
        def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
            return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=num_training_steps)
        class LlamaForCausalLM(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
                self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
                self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
            def forward(self, input_ids, labels):
                logits = self.head(self.embedding(input_ids)).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, labels.flatten())
                return SimpleNamespace(loss=loss)
            def save_pretrained(self, place):
                torch.save(self.state_dict(), f"{place}.pt")
    """,
    "transformers/trainer.py": """
        class Trainer:
            def __init__(self, **options):
                pass
    """,
}
"""What the page needs of these packages; ``make frameworks`` takes the real ones."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    place = tmp_path / "site-packages"
    for name, text in STAND_INS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(textwrap.dedent(text))
    return place


def blocks(section: str) -> list[str]:
    """Return what stands before and after, as the page has it."""
    text = PAGE.read_text()
    _, _, rest = text.partition(f"\n### From {section}\n")
    return re.findall(r"^```python\n(.*?)^```", rest.partition("\n##")[0], re.DOTALL | re.MULTILINE)


def write_mine(directory: Path) -> None:
    (found,) = re.findall(r"^```python\n(# mine\.py\n.*?)^```", PAGE.read_text(), re.DOTALL | re.M)
    (directory / "mine.py").write_text(found)


def test_every_way_has_a_section_with_before_and_after() -> None:
    assert {section: len(blocks(section)) for section in SECTIONS} == dict.fromkeys(SECTIONS, 2)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_stands_after_trains(
    tmp_path: Path,
    installed: Path,
    section: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_mine(tmp_path)
    (tmp_path / "after.py").write_text(blocks(section)[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    for name in [one for one in sys.modules if one.partition(".")[0] in REAL.values()]:
        monkeypatch.delitem(sys.modules, name)  # the real one, of a test before
    before = set(sys.modules)

    try:
        runpy.run_path("after.py", run_name="__main__")
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("mine", *REAL.values()):
                del sys.modules[name]

    out = Path("out.pt") if section == "a Trainer of Hugging Face" else Path("weights.pt")
    assert out.stat().st_size > 0
    losses = re.findall(r"^step \d+  loss (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert not losses or float(losses[-1]) < float(losses[0])


@pytest.mark.frameworks
@pytest.mark.parametrize("section", REAL)
def test_before_and_after_run_with_the_real_packages(tmp_path: Path, section: str) -> None:
    pytest.importorskip(REAL[section], reason=f"pip install {REAL[section]}")
    write_mine(tmp_path)
    for name, text in zip(("before.py", "after.py"), blocks(section), strict=True):
        (tmp_path / name).write_text(text)
        subprocess.run([sys.executable, name], cwd=tmp_path, check=True, timeout=100)
