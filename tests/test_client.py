"""Jobs and pools from Python, against real ones; the page on it is walked by ``tests/pages``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live.stage import MARK, FreshStage

from pliant.client import Job, Pool, number_of
from pliant.core.errors import ConfigError

SCRIPT = """\
import threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(512, 4))
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4,
                    checkpoint=pliant.Checkpoint("kept", every="1000steps")) as session:
    for step in session.steps(100_000):
        for (x,) in step:
            step.backward(model(x).square().mean())
        threading.Event().wait(0.02)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return where a person works, of whom nothing runs yet; nor does afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(SCRIPT)
    here = FreshStage()
    monkeypatch.setenv(MARK, here._mark)  # what is started in the background is found by it
    yield tmp_path
    here.end()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_job_is_submitted_scaled_suspended_and_resumed(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"the script nothing\.py does not exist"):
        Job.submit("nothing.py")

    job = Job.submit("train.py", name="gpt", start=1, max=2)
    for record in job.events():
        if record["kind"] == "commit":
            break
    assert job.scale(2)["target_replicas"] == 2
    with pytest.raises(ConfigError, match="no replica r9"):
        job.drain("r9")
    assert job.set_policy(maxReplicas=3)["reason"]
    assert job.policy()["maxReplicas"] == 3
    with pytest.raises(TimeoutError):
        job.wait(timeout_s=0.1)
    seen = job.events()
    job.suspend("for a test")
    end = job.wait(timeout_s=60)

    assert (end.state, end.exit_code, end.step > 0) == ("suspended", 3, True)
    assert [r["kind"] for r in seen][-1] == "job_ended", "what is followed ends with the job"
    with pytest.raises(ConfigError, match="job gpt does not run: suspended after"):
        job.scale(1)

    same = Job("gpt")
    again = same.resume()
    assert Job.running()[0].name == again.name == "gpt"
    next(r for r in again.events() if r["kind"] == "commit" and r["step"] >= end.step)
    assert again.stop(now=True)["reason"]
    assert again.wait(timeout_s=60).state == "stopped"
    assert same.status()["restored"]["committed"] == end.step


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pool_is_started_changed_and_has_jobs(home: Path) -> None:
    pool = Pool.start(2, name="ours")
    pool.set_team("ml", quota=1)
    assert pool.cordon(1, "for a test")["reason"]
    pool.uncordon(1)
    job = pool.submit("train.py", name="gpt", max=2, team="ml")
    until_in = next(r for r in job.events() if r["kind"] == "commit")

    assert until_in["job"] == "gpt"
    assert [claim["team"] for claim in pool.status()["claims"]] == ["ml"]
    job.stop(now=True)
    job.wait(timeout_s=60)
    pool.stop()
    assert [r["kind"] for r in pool.events(follow=False)][-1] == "pool_stopped"
    with pytest.raises(ConfigError, match="no pool named ours is running"):
        Pool("ours")


def test_a_device_may_be_called_by_its_number_or_its_name() -> None:
    status = {"devices": [{"name": "cuda:GPU-a", "device": 3}]}

    assert number_of("3", dict) == number_of("cuda:GPU-a", lambda: status) == 3
