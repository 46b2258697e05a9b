"""Commands, files, runs and pools that are refused, with the sentence that each is refused with.

Owns tables of sentences, with " ... " for more of the same; a row types a command, or calls what
refuses.  Sentences that take more than that are shown where it is tested.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
from tests.certificates import Authority
from tests.checkpoint.states import plain_save
from tests.features.refusal import Listed, Script, Typed

import pliant
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.starting_weights import write_starting_weights
from pliant.checkpoint.store.open import open_storage
from pliant.client import number_of
from pliant.core.values import TlsFiles
from pliant.http.server import open_socket
from pliant.machine import device_locks, registry
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.machine.tls import ServedTls, TlsContexts
from pliant.pool.admin import PoolAdmin
from pliant.run import background, pool_host, run_directory
from pliant.run.pool_config import _named

RUN = "run job.yaml"

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  startReplicas: 2
  command: [train.py]
"""
LOG, LOGS = Path("run/events.jsonl"), Path("run/logs")


def written(path: str | Path, text: str = "") -> Script:
    """Return what writes a file."""

    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    return write


def began(**changes: Any) -> Script:
    """Return what leaves a run behind, in ``run``: that of ``x.py``, where nothing is."""

    def write() -> None:
        started = {
            "kind": "job_started",
            "at": 1.0,
            "job": "x",
            "policy": {"min": 1, "max": 1, "start": None},
            "command": ["x.py"],
            "cwd": "/",
            **changes,
        }
        written(LOG, json.dumps({"v": 1, **started}) + "\n")()

    return write


def ended(**changes: Any) -> Script:
    """Return what leaves a run behind that has finished."""

    def write() -> None:
        began(**changes)()
        with LOG.open("a") as log:
            log.write('{"v": 1, "kind": "job_ended", "at": 2.0, "exit_code": 0, "reason": ""}\n')

    return write


def printed(*names: str) -> Script:
    """Return what leaves a run whose replicas have printed something."""

    def write() -> None:
        written(LOG)()
        for name in names:
            written(LOGS / f"{name}.log")()

    return write


def runs(kind: str, name: str) -> Script:
    """Return what makes this process look like a job, or a pool, that does not answer."""

    def write() -> None:
        state = StateDirectory.of(os.environ)
        records = {"job": state.jobs, "pool": state.pools}[kind]
        files = RuntimeFiles.of(kind, name, records)
        files.write(url="http://127.0.0.1:1", token="t", out=Path("run"))

    return write


def unwritable() -> None:
    Path("file").touch()
    files = RuntimeFiles.of("job", "gpt", Path("file/jobs"))
    files.write(url="http://h", token="t", out=Path("run"))


def held_twice() -> None:
    Path("run").mkdir()
    held = run_directory.locked(Path("run"), alone=True)
    with held, run_directory.locked(Path("run"), alone=True):
        pass


def read_for_ever() -> None:
    with mock.patch.object(run_directory, "INITIAL_S", 0.0):
        run_directory.initial_weights("weights", Path())


def unserved() -> None:
    with mock.patch.object(background, "FOUND_S", 0.0), mock.patch("subprocess.Popen"):
        background.start(["this"], {}, log=Path("log"), find=lambda: None)


def other_shape() -> None:
    plain_save({"model": {"w": torch.zeros(3)}}, Path("theirs"))
    load(open_checkpoint(open_storage("theirs")), into={"model.w": torch.zeros(4)})


def no_tensor() -> None:
    plain_save({"count": 3}, Path("theirs"))
    write_starting_weights("theirs", Path("init.pt"))


def all_damaged() -> None:
    written("root/step-00000005-l1/pliant.json", "{")()
    write_starting_weights("root", Path("init.pt"))


def linked() -> None:
    Path("ml").symlink_to(".")
    device_locks.make_entered(Path("ml"), os.getegid())


def below_a_file() -> None:
    Path("file").touch()
    device_locks.make_entered(Path("file/ml"), os.getegid())


def open_to_all() -> None:
    place = Path("ml")
    device_locks.make_entered(place, os.getegid())
    with registry.listen(place, os.getegid(), waiting=1):
        place.chmod(0o777)
        registry.shared_pool("ml", Path())


def no_place() -> None:
    Path("file").touch()
    config = SimpleNamespace(records=Path("file/pools"), name="ml", gid=os.getegid())
    pool_host.make_directory(cast(Any, config))


def private_in_shared() -> None:
    device_locks.make_entered(Path("ml"), os.getegid())
    config = SimpleNamespace(records=Path(), name="ml", gid=None)
    pool_host.make_directory(cast(Any, config))


def called_otherwise() -> None:
    claim = SimpleNamespace(name="ada/gpt", devices=[0])
    _named(("cuda:1",), cast(Any, SimpleNamespace(claims=[claim], names=("cuda:0",))))


def all_named() -> None:
    driver = SimpleNamespace(follows="", saved=SimpleNamespace(names=("cuda:0",)))
    asyncio.run(PoolAdmin(cast(Any, driver)).set_devices(3))


QUOTAS = """\
apiVersion: pliant.dev/v1alpha1
kind: Pool
spec:
  teams:
    - {name: a, quota: 3}
    - {name: b, quota: 3}
"""


def two_devices() -> dict[str, Any]:
    """Return the status of a pool that has two devices with names."""
    return {"devices": [{"name": f"cuda:{number}", "device": number} for number in range(2)]}


def node_files(**changes: Any) -> TlsFiles:
    """Write ``ca.pem``, ``node.pem`` and ``node.key`` where the script runs."""
    Authority(Path()).files(**changes)
    return TlsFiles(ca="ca.pem", certificate="node.pem", key="node.key")


def foreign_certificate() -> None:
    files = node_files()
    Authority(Path())  # another, under the same name
    TlsContexts.of(files)


def key_for_a_certificate() -> None:
    TlsContexts.of(replace(node_files(), certificate="node.key"))


TYPED: dict[str, Typed] = {
    "the script and its arguments have 100028 bytes, and a replica can be told of "
    "98304 at most; put them into a file that the script reads": Typed(
        f"run train.py {'x' * 100_013}"
    ),
    "'caf\\udce9' is no text in UTF-8, as what a script is given must be; rename the file": Typed(
        "run train.py caf\udce9"
    ),
    "package is a package without __main__.py; name a module of it": Typed(
        "run -m package", before=written("package/__init__.py")
    ),
}

RUNS: dict[str, Typed] = {
    "/gone/for/ever, where the run began, cannot be entered: No such file or "
    "directory; call this where its script is": Typed(
        "resume run", before=began(cwd="/gone/for/ever")
    ),
    "the script x.py is no longer in /": Typed("resume run", before=began()),
    "the module x.y is no longer in /": Typed("resume run", before=began(command=["-m", "x.y"])),
}

JOBS: dict[str, Typed] = {
    "job gpt does not answer at http://127.0.0.1:1: Connection refused": Typed(
        "scale 2 --job gpt", before=runs("job", "gpt")
    ),
    "no replica has printed anything yet (looked in run/logs)": Typed(
        "logs --out run", before=printed()
    ),
}

NODES: dict[str, Typed] = {
    "a coordinator's agents are in no pool; --pool is for pliant run": Typed(
        "coordinator --port 7000 job.yaml",
        replaced=("  startReplicas: 2\n", "  startReplicas: 2\n  pool: {name: lab}\n"),
    ),
    "... holds another run; choose another --out": Typed(
        "coordinator --port 7000 --out run train.py", before=began()
    ),
    "the run of ... has finished; choose another --out": Typed(
        "coordinator --port 7000 --out run train.py",
        before=ended(job="train", command=["train.py"]),
    ),
}

POOLS: dict[str, Typed] = {
    "pool.yaml line 4: spec.devices cpu:4094: core 4094 is not one of this machine's": Typed(
        "pool start --config pool.yaml",
        before=written("pool.yaml", QUOTAS.partition("  teams")[0] + "  devices: cpu:4094\n"),
    ),
    "pool.yaml line 4: spec.devices must be a whole number, or a list such as "
    "cuda:0-3, not 8.5": Typed(
        "pool start --config pool.yaml",
        before=written("pool.yaml", QUOTAS.partition("  teams")[0] + "  devices: 8.5\n"),
    ),
    "pool.yaml line 5: team a has a borrowLimit of 3 but no quota that it could "
    "exceed; give it a quota": Typed(
        "pool start --config pool.yaml",
        before=written("pool.yaml", QUOTAS.replace("quota: 3", "borrowLimit: 3", 1)),
    ),
    "pool.yaml line 3: team a lets class vip reclaim, which does not exist; classes "
    "are high, low, normal, urgent": Typed(
        "pool start --config pool.yaml",
        before=written("pool.yaml", QUOTAS.replace("quota: 3", "reclaim: {by: [vip]}", 1)),
    ),
    "the quotas 3 (a) + 3 (b) are more than the pool's 4 devices; lower one "
    "or give the pool more": Typed(
        "pool start --devices 4 --config pool.yaml", before=written("pool.yaml", QUOTAS)
    ),
}

WRITTEN: dict[str, Typed] = {
    "job.yaml cannot be read: it is no UTF-8 text": Typed(
        "run job.yaml", before=lambda: Path("job.yaml").write_bytes(b"\xff\xfe")
    ),
}

CHANGED: dict[str, tuple[str, str]] = {
    'job.yaml line 7: spec.command[1] must be text; put it in quotes: "5"': (
        "[train.py]",
        "[train.py, 5]",
    ),
    "job.yaml line 7: spec.command must not be empty": ("[train.py]", "[]"),
    "job.yaml line 6: spec.sessionTimeoutInSeconds must be more than 0, not 0": (
        "startReplicas: 2",
        "sessionTimeoutInSeconds: 0",
    ),
    "job.yaml line 7: spec.command must be a list, not 'train.py'": ("[train.py]", "train.py"),
    "job.yaml line 7: tls.key is missing: replicas need all three files for TLS": (
        "  startReplicas: 2\n",
        "  startReplicas: 2\n  tls: {ca: a, certificate: b}\n",
    ),
}
"""What is changed in the job file that is run."""

TEXTS: dict[str, str] = {
    "job.yaml line 1 is not valid YAML: found unexpected end of stream": 'kind: "',
    "job.yaml is not valid YAML: month must be in 1..12 ... ": "kind: 2026-13-01",
}
"""What else stands in it."""

SCRIPTS: dict[str, Script | Listed] = {
    "the job of run is running already; see pliant status": held_twice,
    "--init weights was not read within 0 s": read_for_ever,
    "what was started in the background did not answer within 0 s; log has its output": unserved,
    "file/jobs cannot be written: Not a directory": unwritable,
    "gone/token cannot be used: No such file or directory": lambda: run_directory.lasting_token(
        Path("gone/token")
    ),
    "cannot listen on 192.0.2.1 port 7000: Cannot assign requested address": lambda: open_socket(
        "192.0.2.1", 7000
    ),
    "the certificate node.key holds no certificate in PEM form": key_for_a_certificate,
    "the certificate node.pem is not signed by the CA ca.pem": foreign_certificate,
    "the certificate node.pem does not name 10.0.0.1": lambda: ServedTls(
        node_files(names=["10.0.0.2"]), "10.0.0.1"
    ),
    "milestones=0 must be at least 1 step apart": lambda: pliant.Checkpoint("kept", milestones=0),
    "model.w is float32 [3] in ... and float32 [4] here": other_shape,
    "... holds no tensor": no_tensor,
    "every checkpoint in root is damaged: ... ": all_damaged,
    "ada/gpt still has device 0, which is called otherwise now; start with the "
    "same devices, or end that claim first": called_otherwise,
    "there is no device 'cuda:9'; there are cuda:0, cuda:1": lambda: number_of(
        "cuda:9", two_devices
    ),
    "the devices have names, and more of them would have none; cordon or drain some": all_named,
    "file/pools cannot be made: Not a directory; have it made, or say where pools are "
    "shared with PLIANT_SHARED_POOLS": no_place,
    "ml is of a pool that users share; start that with --group, or choose another "
    "--name": private_in_shared,
    "ml is another user's; choose another --name": linked,
    "file/ml cannot be shared: Not a directory": below_a_file,
    "the file system of /proc gives no file to a single user (No such file or "
    "directory); a shared pool needs access control lists": lambda: device_locks.require_rights(
        Path("/proc")
    ),
    "ml may be changed by others than who runs the pool there; do not use it": open_to_all,
    "d ... /socket is too long for a socket; at most 107 bytes": lambda: registry.listen(
        Path("d" * 150), os.getegid(), waiting=1
    ),
    "cannot listen at gone/socket: No such file or directory": lambda: registry.listen(
        Path("gone"), os.getegid(), waiting=1
    ),
}

COMMANDS: dict[str, Typed] = {
    **TYPED,
    **RUNS,
    **JOBS,
    **NODES,
    **POOLS,
    **WRITTEN,
    **{said: Typed(RUN, replaced=changed) for said, changed in CHANGED.items()},
    **{said: Typed(RUN, before=written("job.yaml", text)) for said, text in TEXTS.items()},
}
