"""TLS of a node: its files, read and refused, and what they make of a connection.

Owns how the files of a node are read and refused, and what is spoken between replicas: TLS 1.3,
both sides with a certificate that the job's CA has signed.  There a certificate says "of this job's
trust" and no more; which replica and which generation is for the members to prove.  What a
coordinator and who connects to it speak is made of the same (``machine.control_tls``).  Must not
know sockets or members.

    TlsFiles --> TlsContexts.of: read, each fault in a sentence --> shake hands with itself
"""

from __future__ import annotations

import contextlib
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles

MISFITS = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""What OpenSSL calls a key that is not of the certificate; the last if it is of another kind."""

MARKS = {"ca": b"CERTIFICATE", "certificate": b"CERTIFICATE", "key": b"PRIVATE KEY"}
"""What each file holds, in PEM's words."""

FLAWS = {
    **dict.fromkeys((7, 18, 19, 20, 21), "is not signed by the CA {ca}"),
    9: "is not valid yet, or its CA is not; compare the clocks",
    10: "has expired, or its CA has",
    62: "does not name {name}",
    64: "does not name {name}",
    26: "is not for both ends of a connection; its extendedKeyUsage must name serverAuth and"
    " clientAuth, or be left out",
}
"""What is wrong with a certificate, by OpenSSL's ``X509_V_ERR_...``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """The two ends of connections between replicas, on one node."""

    files: TlsFiles
    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def of(cls, files: TlsFiles) -> Self:
        """Read the files of this node.

        Raises:
            ConfigError: one cannot be used, or another node would not accept them.
        """
        contexts = cls(
            files=files,
            server=context_of(files, ssl.PROTOCOL_TLS_SERVER),
            client=context_of(files, ssl.PROTOCOL_TLS_CLIENT),
        )
        try_out(contexts.client, contexts.server, files)
        return contexts

    def renewed(self) -> TlsContexts:
        """Return those of the files as they are now, or these while they cannot be used.

        Certificates are replaced while a job runs, and one file is replaced before the other.
        """
        with contextlib.suppress(ConfigError, OSError):
            return TlsContexts.of(self.files)
        return self


def try_out(
    client: ssl.SSLContext, server: ssl.SSLContext, files: TlsFiles, name: str | None = None
) -> None:
    """Let two ends shake hands in memory: as others will, they look at signature, dates and name.

    Raises:
        ConfigError: one does not accept the certificate of the other, which is that of ``files``.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the certificate {files.certificate} {flaw_of(error, files.ca, name)}"
            ) from None
        except ssl.SSLError as error:
            raise _unusable(files, error) from None


def flaw_of(error: ssl.SSLCertVerificationError, ca: str, name: str | None) -> str:
    """Say what is wrong with a certificate that was not accepted."""
    flaw = FLAWS.get(error.verify_code, f"is refused: {error.verify_message}")
    return flaw.format(ca=ca or "of the system", name=name)


def exposed_key(files: TlsFiles) -> str | None:
    """Return a warning if everybody on this machine can read the key.

    Raises:
        OSError: it is not there.
    """
    if Path(files.key).stat().st_mode & stat.S_IROTH:
        return f"every user of this machine can read the key {files.key}; chmod 600 it"
    return None


def _check_pem(files: TlsFiles, role: str, mark: bytes) -> None:
    path = getattr(files, role)
    if not path:
        return
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        said = error.strerror
        raise ConfigError(f"the {_word(role)} {path} cannot be read: {said}") from None
    if mark + b"-----" not in data:
        raise _no_pem(files, role)


def context_of(files: TlsFiles, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    """Make one end of the files that are given; with a CA it trusts that, and none of the system's.

    Raises:
        ConfigError: one of them cannot be used.
    """
    for role, mark in MARKS.items():
        _check_pem(files, role, mark)
    ssl_context = ssl.SSLContext(protocol)
    ssl_context.check_hostname = False  # nodes come and go under any name
    is_client = protocol is ssl.PROTOCOL_TLS_CLIENT
    ssl_context.verify_mode = ssl.CERT_REQUIRED if files.ca or is_client else ssl.CERT_NONE
    ssl_context.minimum_version = ssl_context.maximum_version = ssl.TLSVersion.TLSv1_3
    # Not OP_ENABLE_KTLS: a connection that Linux 6.15 or later encrypts takes no connect(2) to
    # nobody, by which a generation is abandoned, and idle members would not hear of that.
    ssl_context.options |= ssl.OP_NO_COMPRESSION
    if not is_client:
        ssl_context.num_tickets = 0  # a session is never taken up again
    for role in ("certificate", "ca"):
        trust = ssl_context if role == "ca" else ssl.SSLContext(protocol)  # only to parse it
        try:
            if path := getattr(files, role):
                trust.load_verify_locations(path)
        except ssl.SSLError:
            raise _no_pem(files, role) from None
    if is_client and not files.ca:
        ssl_context.load_default_certs()
    if files.certificate:
        _load_key(ssl_context, files)
    return ssl_context


def _load_key(ssl_context: ssl.SSLContext, files: TlsFiles) -> None:
    def refuse() -> str:  # else OpenSSL asks whoever sits at the terminal
        raise ConfigError(
            f"the key {files.key} has a password, which nobody is asked for; remove it"
        )

    try:
        ssl_context.load_cert_chain(files.certificate, files.key, password=refuse)
    except ssl.SSLError as error:
        if error.reason in MISFITS:
            raise ConfigError(
                f"the key {files.key} does not belong to the certificate {files.certificate}"
            ) from None
        raise (_unusable(files, error) if error.reason else _no_pem(files, "key")) from None


def _unusable(files: TlsFiles, error: ssl.SSLError) -> ConfigError:
    why = (error.reason or str(error)).replace("_", " ").lower()
    return ConfigError(f"the certificate {files.certificate} cannot be used with its key: {why}")


def _no_pem(files: TlsFiles, role: str) -> ConfigError:
    what = "private key" if role == "key" else "certificate"
    return ConfigError(f"the {_word(role)} {getattr(files, role)} holds no {what} in PEM form")


def _word(role: str) -> str:
    return "CA" if role == "ca" else role
