"""What `pliant run` does once its arguments are read; for tests that start whole jobs."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.live.forking import ForkedServer

from pliant.agent.launcher import StartServer, start_server
from pliant.core.device_masks import Accelerator
from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.log_rules import LogRule
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.core.step.balance import Balance
from pliant.core.tenancy import PoolPlace
from pliant.core.values import Exchange, FromCheckpoint, Mode
from pliant.machine import accelerators, device_health
from pliant.run import host_devices
from pliant.run.job_config import JobConfig
from pliant.run.local import run_job

SHARED = "PLIANT_TEST_SHARED_DEVICE"
"""In the environment: workers are as many as cores, and each sees every device."""

AILING = "PLIANT_TEST_AILING"
"""In the environment: a file with the names of those of two devices that are not healthy."""

COLD_SERVER = Path(__file__).with_name("cold_server.py")

STARTS: dict[str, StartServer] = {
    "warm": start_server,
    "cold": partial(start_server, arguments=[str(COLD_SERVER)]),
    "forked": ForkedServer,
}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if os.environ.get(SHARED):
        vars(host_devices)["visible"] = lambda environ: ()
    if ailing := os.environ.get(AILING):
        two = [Accelerator(name=f"cuda:GPU-{one}", uuid=f"GPU-{one}") for one in "ab"]
        vars(host_devices)["visible"] = lambda environ: tuple(two)
        vars(device_health)["LOOK_S"] = 0.2
        vars(accelerators)["ailments"] = lambda names: {
            name: "it is too hot" * (name in Path(ailing).read_text()) for name in names
        }
    config = JobConfig(
        name=given["name"],
        argv=tuple(given["argv"]),
        environ=os.environ,
        out=Path(given["out"]),
        port=given["port"],
        from_checkpoint=FromCheckpoint.ANYWAY,  # lives of one job differ in what tests do to them
        pool=None if given["pool"] is None else PoolPlace(**given["pool"]),
        settings=JobSettings(
            policy=Policy(
                min_replicas=given["least"],
                max_replicas=given["replicas"],
                start_replicas=given["start"],
                **given["policy"],
            ),
            timeouts=Timeouts(**given["timeouts"]),
            restart_budget=given["restarts"],
            **given["limits"],
        ),
        verify_every=given["verify_every"],
        balance=Balance(given["balance"]),
        exchange=Exchange(given["exchange"]),
        workers_per_replica=given["workers"],
        mode=Mode(given["mode"]),
        strict=given["strict"],
        log_rules=tuple(LogRule(**one) for one in given["rules"]),
    )
    try:
        sys.exit(run_job(config, start_server=STARTS[given["server"]]))
    except ConfigError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(2)
