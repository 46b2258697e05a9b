"""Where a node has what it proves itself with: to replicas of other nodes, and to the coordinator.

Owns three paths.  Knows nothing of what is in the files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files in PEM form; replicas need all three.  Of a job, the absolute paths on every node."""

    ca: str = ""
    """The certificate that signs those of all nodes; several may stand in one file.  Empty: who
    serves asks for no certificate, and who connects trusts the CAs of the system."""

    certificate: str = ""
    """Each node has its own here, with those between it and the CA, if there are any.  Empty: who
    connects has none, and proves itself by the token alone."""

    key: str = ""
    """Of the certificate; without a password."""

    @property
    def is_whole(self) -> bool:
        """Whether both ends of a connection can prove themselves with them."""
        return bool(self.ca and self.certificate and self.key)
