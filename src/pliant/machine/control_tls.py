"""TLS between a coordinator and who connects to it: agents, and the commands of people.

Owns what either end is made of, and how a connection that fails for it is told.  Here a certificate
names a host: who connects looks whether it is the host that was meant.  With a CA the coordinator
wants a certificate of who connects, too: whoever serves looks that there is one.  Knows nothing of
sockets, HTTP or tokens.

    TlsFiles --> ServedTls --> context     who serves, and who connects again and again: the files
             --> RenewedTls --> context    are looked at for each connection, as they are renewed
             --> client_context            who connects once
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.machine.tls import context_of, flaw_of, try_out

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
