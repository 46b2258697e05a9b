"""Each worker has the accelerator that was meant for it before anything has looked for one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes.launching import running
from tests.processes.servant import fork_server

from pliant.agent.launcher import FIXED_ENVIRONMENT, SERVER_ARGUMENTS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TELLS = """
import json, os, sys, time
from pathlib import Path
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LOCAL_RANK", "PLIANT_DEVICE_NAMES")
directory, said = Path(sys.argv[1]), {name: os.environ.get(name) for name in names}
fresh = directory.with_name(f"fresh-{os.getpid()}")
fresh.write_text(json.dumps(said))
fresh.rename(directory / said["PLIANT_DEVICE_NAMES"])
while len(list(directory.iterdir())) < 2:  # who ends first ends the job
    time.sleep(0.02)
"""

SMI = """#!/bin/sh
case "$1" in
-L) echo "GPU 0: A (UUID: GPU-aa)"; echo "GPU 1: A (UUID: GPU-bb)" ;;
*) echo "GPU-aa, A, 1024"; echo "GPU-bb, A, 1024" ;;
esac
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nvidia-smi tell of two, and nobody else of any."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    (tool.parent / "pynvml.py").write_text("raise ImportError")
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tool.parent))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def _told(directory: Path, **options: Any) -> list[dict[str, str | None]]:
    """Run a job; return what two workers were told of their devices."""
    script, said = directory / "tells.py", directory / "said"
    script.write_text(TELLS)
    said.mkdir()
    with running(directory, script, said, **options) as job:
        job.wait_for(lambda: len(list(said.iterdir())) == 2, "two have said it")
        assert "Traceback" not in job.said()
        job.wait_for(lambda: len(job.records("worker")) >= 2, "both are known")
        names = {record["device_name"] for record in job.records("worker")}
        assert names == {path.name for path in said.iterdir()}
    return [json.loads(path.read_text()) for path in sorted(said.iterdir())]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, ["GPU-aa", "GPU-bb"]),
        pytest.param("1,0", ["0", "1"], marks=pytest.mark.slow),
        pytest.param("GPU-b,GPU-a", ["GPU-a", "GPU-b"], marks=pytest.mark.slow),
    ],
)
def test_replicas_have_an_accelerator_each(
    tmp_path: Path, mask: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)

    one, other = _told(tmp_path, replicas=4)

    assert [said["CUDA_VISIBLE_DEVICES"] for said in (one, other)] == seen
    assert one["PLIANT_DEVICE_NAMES"] == f"cuda:{seen[0]}"
    assert one["CUDA_DEVICE_ORDER"] is None, "as the surroundings count"
    assert one["LOCAL_RANK"] is None


@pytest.mark.usefixtures("two_gpus")
def test_workers_of_a_replica_see_all_of_its_accelerators(tmp_path: Path) -> None:
    one, other = _told(tmp_path, replicas=1, workers=2)

    assert one["CUDA_VISIBLE_DEVICES"] == other["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"
    assert (one["LOCAL_RANK"], one["PLIANT_DEVICE_NAMES"]) == ("0", "cuda:GPU-aa")
    assert (other["LOCAL_RANK"], other["PLIANT_DEVICE_NAMES"]) == ("1", "cuda:GPU-bb")


@pytest.mark.usefixtures("two_gpus")
def test_fewer_accelerators_than_a_job_needs_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)

    with running(tmp_path, script, tmp_path, replicas=4, least=3) as job:
        assert job.exit_code() == 2
        assert "--min 3 is 3 workers: this host has 2 accelerators" in job.said()


LOOKS = """
import json, os, sys
from pathlib import Path
calls, said = Path(os.environ["CALLS_OF_CUINIT"]), {"before": 0, "sees": None}
said["before"] = len(calls.read_text().split())
said["sees"] = os.environ["CUDA_VISIBLE_DEVICES"]
import torch
said["number"] = torch.cuda.device_count()
said["after"] = len(calls.read_text().split())
Path("said.json").write_text(json.dumps(said))
"""


@pytest.mark.slow
def test_the_driver_is_not_initialised_before_the_first_line_of_a_script(tmp_path: Path) -> None:
    """A process that is forked from one that has done so could not use a device."""
    if torch.version.cuda is None:
        pytest.skip("torch was built without CUDA")
    if shutil.which("gcc") is None:
        pytest.skip("the stand-in for the driver needs gcc")
    source, library = Path(__file__).with_name("libcuda.c"), tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    (tmp_path / "looks.py").write_text(LOOKS)
    calls = tmp_path / "calls"
    calls.touch()
    around = {
        "CALLS_OF_CUINIT": str(calls),
        "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }

    with fork_server(*SERVER_ARGUMENTS, **around, **FIXED_ENVIRONMENT) as server:
        server.start(tmp_path, "looks.py", device_names=("cuda:GPU-aa",))
        server.exit()
        assert calls.read_text() == "cuInit\n", "of the script alone"

    said = json.loads((tmp_path / "said.json").read_text())
    assert (said["before"], said["sees"]) == (0, "GPU-aa")
    assert (said["number"], said["after"]) == (0, 1), "the stand-in is asked"
