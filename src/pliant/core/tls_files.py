"""Where a node has what it proves itself with to the nodes of other replicas.

Owns three paths.  Knows nothing of what is in the files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files in PEM form, under the same absolute paths on every node."""

    ca: str
    """The certificate that signs those of all nodes; several may stand in one file."""

    certificate: str
    """Each node has its own here, with those between it and the CA, if there are any."""

    key: str
    """Of the certificate; without a password."""
