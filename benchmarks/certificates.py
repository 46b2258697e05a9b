"""Certificates for a benchmark with TLS: a CA and one certificate of all its processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pliant.core.values import TlsFiles
from pliant.machine.tls import TlsContexts

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"


def make(folder: Path) -> None:
    """Write ``ca.pem``, ``node.pem`` and ``node.key``, by the openssl command."""
    _openssl(folder, f"req -x509 {_KEY} -subj /CN=ca -keyout ca.key -out ca.pem")
    _openssl(folder, f"req {_KEY} -subj /CN=node -keyout node.key -out node.csr")
    _openssl(folder, "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -days 2 -out node.pem")


def contexts(folder: Path) -> TlsContexts:
    """Read what ``make`` has written."""
    return TlsContexts.of(
        TlsFiles(
            ca=str(folder / "ca.pem"),
            certificate=str(folder / "node.pem"),
            key=str(folder / "node.key"),
        )
    )


def _openssl(folder: Path, arguments: str) -> None:
    command = ["openssl", *arguments.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
