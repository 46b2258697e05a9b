"""One machine with several users: a shared pool, and processes of each of them.

Owns their state directories, and the start and end of their processes.  Needs root: users are
made by their numbers, no file of the machine is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.pool.box import Claim, Process, until

from pliant.machine.registry import SOCKET, Served, shared_pool

HERE = Path(__file__).parent
GROUP = 62_000
OWNER, ADA, BOB, STRANGER = 61_000, 61_001, 61_002, 61_003

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/locks").exists(),
    reason="only root can be several users of a machine",
)


@dataclass
class Town:
    """Everybody on one machine."""

    directory: Path
    started: list[Process] = field(default_factory=list)

    @property
    def pools(self) -> Path:
        return self.directory / "pools"

    @property
    def locks(self) -> Path:
        return self.pools / "ml" / "devices"

    def run(self, uid: int, *words: object, gid: int = GROUP) -> Process:
        """Start ``python WORDS`` as a user."""
        home = self.directory / str(uid)
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, -1)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")},
            "XDG_STATE_HOME": str(home),
            "HOME": str(home),
            "PLIANT_SHARED_POOLS": str(self.pools),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        out = self.directory / f"{len(self.started)}.out"
        with out.open("wb") as output:
            program = subprocess.Popen(
                [sys.executable, HERE / "as_user.py", str(uid), str(gid), *map(str, words)],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process(program, out)
        self.started.append(process)
        return process

    def pliant(self, uid: int, *words: object, gid: int = GROUP) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it said."""
        process = self.run(uid, "-m", "pliant", *words, gid=gid)
        return process.ended(30.0), process.said()

    def start_pool(self, *options: str, owner: int = OWNER, grace_s: float = 0.3) -> Process:
        words = ("pool", "start", "--name", "ml", "--group", str(GROUP), *options)
        pool = self.run(owner, HERE / "start_pool.py", 5.0, grace_s, *words)
        until(lambda: self._serves(pool), "the pool serves")
        return pool

    def _serves(self, pool: Process) -> bool:
        assert pool.code is None, pool.said()
        return shared_pool("ml", self.pools) is not None

    def served(self) -> Served:
        found = shared_pool("ml", self.pools)
        assert found is not None
        return found

    def claim(self, uid: int, devices: int, *options: str, name: str) -> Claim:
        words = ("-m", "pliant", "claim", devices, "--pool", "ml", "--name", name, "--json")
        one = self.run(uid, *words, *options)
        return Claim(one.program, one.out, name)

    def client(self) -> httpx.Client:
        """Return root's way to the pool, who may see and do all."""
        way = httpx.HTTPTransport(uds=str(self.pools / "ml" / SOCKET))
        return httpx.Client(transport=way, base_url="http://pool", trust_env=False, timeout=10.0)

    def board(self) -> dict[str, dict[str, Any]]:
        with self.client() as root:
            return {one["name"]: one for one in root.get("/v1/status").json()["claims"]}

    def records(self, kind: str) -> list[dict[str, Any]]:
        with self.client() as root:
            page = root.get("/v1/events").json()
        return [record for record in page["records"] if record["kind"] == kind]


@contextlib.contextmanager
def town() -> Iterator[Town]:
    """Lend a machine; at the end nobody is left on it."""
    directory = Path(tempfile.mkdtemp(prefix="pliant-town-", dir=tempfile.gettempdir()))
    directory.chmod(0o755)
    lent = Town(directory)
    lent.pools.mkdir(mode=0o755)
    os.chown(lent.pools, OWNER, -1)
    try:
        yield lent
    finally:
        for process in lent.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.ended()
        shutil.rmtree(directory)
