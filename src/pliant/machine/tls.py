"""TLS of a host: its files, read and refused, and what they make of a connection.

Owns how the files are read and refused, what each end of a connection is made of, and how one that
fails for it is told.  Must not know sockets, HTTP, tokens or members.

Between replicas TLS 1.3 is spoken, both sides with a certificate that the job's CA has signed.
There a certificate says "of this job's trust" and no more; which replica and which generation is
for the members to prove.  Between a coordinator and who connects to it (agents, and the commands
of people) a certificate names a host: who connects looks whether it is the host that was meant.
With a CA the coordinator wants a certificate of who connects, too: whoever serves looks that there
is one.

    TlsFiles --> TlsContexts.of: read, each fault in a sentence --> shake hands with itself
             --> ServedTls --> context     who serves, and who connects again and again: the files
             --> RenewedTls --> context    are looked at for each connection, as they are renewed
             --> client_context            who connects once
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles

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


NEEDS_TLS = 426
"""HTTP status of what was asked in the clear, or by who shows no certificate; it says which."""

PLAIN = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
"""What OpenSSL makes of an answer in plain text."""

Stamp = tuple[tuple[int, int, int] | None, ...]

_log = logging.getLogger(__name__)


class RenewedTls:
    """One end, as its files were when they could last be used."""

    def __init__(self, files: TlsFiles, make: Callable[[], ssl.SSLContext]) -> None:
        """``make``: of the files as they are.

        Raises:
            ConfigError: the files cannot be used, or others would not accept them.
        """
        self.files = files
        self._make = make
        self._stamp = _stamp(files)
        self._context = make()

    def context(self) -> ssl.SSLContext:
        """Return what the next connection is to be made with."""
        if (stamp := _stamp(self.files)) != self._stamp:
            self._stamp = stamp  # one file is replaced before the other: that is looked at again
            try:
                self._context = self._make()
            except (ConfigError, OSError) as error:
                _log.warning("%s; what it was before counts", error)
        return self._context


class ServedTls(RenewedTls):
    """The coordinator's end."""

    def __init__(self, files: TlsFiles, name: str) -> None:
        """``name``: the host by which others reach it, which its certificate must name."""
        super().__init__(files, lambda: _server_context(files, name))
        self.name = name


def client_context(files: TlsFiles | None) -> ssl.SSLContext:
    """Make the end of who connects; without files it trusts the CAs of the system.

    Raises:
        ConfigError: the files cannot be used, or the coordinator would not accept them.
    """
    if files is None:
        return ssl.create_default_context()
    context = context_of(files, ssl.PROTOCOL_TLS_CLIENT)
    if files.is_whole:  # how the other end will look at it
        context.verify_mode = ssl.CERT_NONE
        try_out(context, context_of(files, ssl.PROTOCOL_TLS_SERVER), files)
        context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    return context


def fault_of_tls(error: BaseException, place: str, files: TlsFiles | None) -> str | None:
    """Say why a connection to a coordinator failed, if that was for TLS; None: it was not."""
    whose = f"the coordinator at {place}"
    fault = next((one for one in _causes(error) if isinstance(one, ssl.SSLError)), None)
    if isinstance(fault, ssl.SSLCertVerificationError):
        flaw = flaw_of(fault, "" if files is None else files.ca, _host_of(place))
        return f"the certificate of {whose} {flaw}"
    if fault is None or fault.reason is None:
        return None
    if fault.reason in PLAIN:
        return f"{whose} does not speak TLS: leave out the TLS options here, or give it some, too"
    if "_ALERT_" not in fault.reason or files is None or not files.certificate:
        return None
    why = fault.reason.rpartition("_ALERT_")[2].replace("_", " ").lower()
    return f"{whose} does not accept the certificate {files.certificate}: {why}"


def names_in(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts and addresses that a certificate names, as ``getpeercert`` tells it."""
    subject = [pair for group in certificate.get("subject", ()) for pair in group]
    called = [value for name, value in subject if name == "commonName"]
    return (*called, *(value for _, value in certificate.get("subjectAltName", ())))


def _server_context(files: TlsFiles, name: str) -> ssl.SSLContext:
    """Make it and look at it as others will: is it of today, and of the host of this name?"""
    context = context_of(files, ssl.PROTOCOL_TLS_SERVER)
    if files.ca:
        client = context_of(files, ssl.PROTOCOL_TLS_CLIENT)
    else:  # which CA others trust is not known: the certificate is taken as its own
        client = context_of(TlsFiles(ca=files.certificate), ssl.PROTOCOL_TLS_CLIENT)
        client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    client.check_hostname = True
    try_out(client, context, files, name)
    if files.ca:  # who shows none is told so; a handshake that fails would tell nothing
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _stamp(files: TlsFiles) -> Stamp:
    return tuple(map(_written, (files.ca, files.certificate, files.key)))


def _written(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat() if path else None
    except OSError:
        found = None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _host_of(place: str) -> str:
    host = place.rpartition("//")[2].partition("/")[0]
    return host.rpartition(":")[0].strip("[]") or host
