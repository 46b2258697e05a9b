"""Builds the servers of the cluster tests once, from their published Go modules.

    python -m tests.cluster.building      builds what is missing, and says where it is

Owns a directory below ``~/.cache/pliant/cluster``, whose name is a sum of what it is built from:

    plane            API server, controller manager, scheduler and kubectl (``tools/plane``)
    kubectl          the same, under the name that makes it kubectl
    kueue            Kueue's controller (``tools/kueue``)
    kueue-config/    Kueue's kinds, webhooks and roles, from its module

A directory that is there is whole.  etcd is the machine's own.  From nothing it takes about
12 minutes on two free cores, 2 GB of modules and 5 GB of Go's build cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
CACHE = Path("~/.cache/pliant/cluster").expanduser()

KUBERNETES = "v1.36.3"
"""What the servers say they are; ``tools/plane/go.mod`` says which they are."""


def built() -> Path:
    """Return where the programs are, or will be."""
    sources = sorted(path for path in TOOLS.rglob("*") if path.is_file())
    added = hashlib.sha256()
    for path in sources:
        added.update(f"{path.relative_to(TOOLS)}\n".encode() + path.read_bytes())
    return CACHE / added.hexdigest()[:16]


def missing() -> str:
    """Return what is missing before a cluster can start here; nothing if it can."""
    if shutil.which("etcd") is None:
        return "needs etcd: apt-get install etcd-server"
    if shutil.which("openssl") is None:
        return "needs openssl: apt-get install openssl"
    return "" if built().is_dir() else "needs the cluster's programs: make test-cluster builds them"


def build() -> Path:
    """Build what is missing, and return where it is; another process that builds is waited for.

    Raises:
        SystemExit: there is no Go, or a build fails.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built().is_dir():
            _build_all(built())
    return built()


def _build_all(where: Path) -> None:
    if shutil.which("go") is None:
        raise SystemExit("building the cluster's programs needs Go 1.26: https://go.dev/dl")
    parts = where.with_name(f"{where.name}.part")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    flags = f"-X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor={major}"
    _go_build("plane", ".", parts, f"{flags} -X {version}.gitMinor={minor}")
    (parts / "kubectl").symlink_to("plane")
    _go_build("kueue", "sigs.k8s.io/kueue/cmd/kueue", parts)
    told = _go("kueue", "list", "-m", "-json", "sigs.k8s.io/kueue")
    config = Path(json.loads(told)["Dir"]) / "config/components"
    for name in ("crd/bases", "rbac", "webhook"):  # modules are read-only; copies need not be
        shutil.copytree(config / name, parts / "kueue-config" / name, copy_function=shutil.copyfile)
    for path in (parts / "kueue-config").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    parts.rename(where)


def _go_build(module: str, package: str, to: Path, flags: str = "") -> None:
    sys.stderr.write(f"go build {module}: minutes, if Go has not built it before\n")
    _go(module, "build", "-trimpath", f"-ldflags=-s -w {flags}", "-o", str(to / module), package)


def _go(module: str, *words: str) -> str:
    """Run ``go`` in a module of ours; only what it prints to stdout is returned."""
    done = subprocess.run(
        ["go", *words],
        cwd=TOOLS / module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"go {words[0]} in {TOOLS / module} ends with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
    if reason := missing():
        raise SystemExit(reason)
