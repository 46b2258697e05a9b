"""What an etcd cluster keeps, read and replaced through its JSON gateway (etcd 3.4 and newer).

Owns how a cluster is named, which of its members is asked, and that of several writers of one key
one wins: a write says which revision it replaces.  Knows nothing of what the keys mean.

    etcd://10.0.0.1:2379,10.0.0.2:2379/gpt     each member is tried in turn
    etcds://etcd1/gpt?ca=FILE&cert=FILE&key=FILE   over TLS; without ca: the CAs of the system

Reads go through the cluster's majority (linearizable, etcd's default): a member that was cut off
from the others answers with an error, never with what was there before.

A write that another member is asked for again is one that never left this process, as no connection
was made.  Of any other failure nobody knows whether the write happens, and when: the caller reads
back (R2), and the revision lets it happen once at most.
"""

from __future__ import annotations

import base64
import errno
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.machine.control_tls import RenewedTls, client_context
from pliant.machine.tls import flaw_of

ANSWER_S = 5.0
"""Longest wait for one member: to connect, and for each part of its answer, in seconds."""

PORT = 2379
"""Where etcd's clients connect, if nothing else is said."""

OPTIONS = {"ca": "ca", "cert": "certificate", "key": "key"}
"""What may stand behind the question mark, and which file that is."""

REFUSING = {400, 401, 403, 404}
"""HTTP status of what does not pass by itself: who asks has no user, or this is no etcd."""


class EtcdRefusedError(OSError):
    """The cluster answered that it does not do what it is asked."""


@dataclass(frozen=True, slots=True)
class EtcdValue:
    """What lies under a key, and which change of the cluster put it there."""

    data: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """A prefix of a cluster's keys."""

    members: tuple[tuple[str, int], ...]
    prefix: str
    tls: RenewedTls | None

    @classmethod
    def named(cls, url: str) -> EtcdPlace:
        """Return the place of a URL.

        Raises:
            ConfigError: it is none, or its files cannot be used.
        """
        scheme, _, rest = url.partition("://")
        hosts, _, path = rest.partition("/")
        path, _, options = path.partition("?")
        if "@" in hosts:
            raise ConfigError(f"--register {scheme}://... names a user; etcd is asked without one")
        try:
            members = tuple(_member(host) for host in hosts.split(","))
        except ValueError:
            members = ()
        if not members or not path.strip("/"):
            raise ConfigError(
                f"--register {url} is no place in etcd; write {scheme}://HOST:2379/NAME, or "
                "several hosts with commas"
            )
        return cls(members, path.strip("/"), _tls(scheme, url, options))


def _member(host: str) -> tuple[str, int]:
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.path or parts.query:
        raise ValueError(host)
    return parts.hostname, parts.port or PORT


def _tls(scheme: str, url: str, options: str) -> RenewedTls | None:
    try:
        given = dict(parse_qsl(options, strict_parsing=True, keep_blank_values=True))
    except ValueError:
        given = {"": options} if options else {}
    if unknown := next((name for name in given if name not in OPTIONS), None):
        raise ConfigError(
            f"--register {url}: {unknown} is none of {', '.join(OPTIONS)}, the files for TLS"
        )
    if scheme == "etcd":
        if given:
            raise ConfigError(f"--register {url} has files for TLS; write etcds:// for TLS")
        return None
    files = TlsFiles(**{OPTIONS[name]: path for name, path in given.items()})
    if bool(files.certificate) != bool(files.key):
        raise ConfigError(f"--register {url}: cert and key go together")
    return RenewedTls(files, lambda: client_context(files))


class EtcdKeys:
    """The keys below a prefix; every method may block, and raises OSError."""

    def __init__(self, place: EtcdPlace) -> None:
        self._place = place
        self._turn = 0
        """Of the member that is asked first: the one that answered last."""

    def read(self, name: str) -> EtcdValue | None:
        """Return what is there; None: nothing is."""
        found = self._ask("range", {"key": self._key(name)}, is_safe=True).get("kvs")
        if not found:
            return None
        return EtcdValue(_bytes(found[0].get("value", "")), int(found[0]["mod_revision"]))

    def write(self, name: str, data: bytes) -> None:
        """Put a value, whatever was there."""
        self._ask("put", self._put(name, data), is_safe=True)

    def exchange(self, name: str, data: bytes, *, revision: int) -> EtcdValue | None:
        """Put a value if what is there is of that revision (0: nothing is); None if it is not."""
        condition = {"key": self._key(name), "target": "MOD", "result": "EQUAL"}
        answer = self._ask(
            "txn",
            {
                "compare": [{**condition, "mod_revision": str(revision)}],
                "success": [{"request_put": self._put(name, data)}],
            },
            is_safe=False,
        )
        if not answer.get("succeeded"):
            return None
        return EtcdValue(data, int(answer["header"]["revision"]))

    def remove(self, name: str) -> None:
        """Remove what is there."""
        self._ask("deleterange", {"key": self._key(name)}, is_safe=True)

    def _key(self, name: str) -> str:
        return _text(f"{self._place.prefix}/{name}".encode())

    def _put(self, name: str, data: bytes) -> dict[str, str]:
        return {"key": self._key(name), "value": _text(data)}

    def _ask(self, what: str, body: dict[str, Any], *, is_safe: bool) -> dict[str, Any]:
        """Ask one member after another; ``is_safe``: also if one may have done it already."""
        members, first = self._place.members, self._turn
        failures: list[OSError] = []
        for turn in range(first, first + len(members)):
            self._turn = turn % len(members)
            asked = _Request(members[self._turn], self._place.tls)
            try:
                return asked.answer(f"/v3/kv/{what}", json.dumps(body).encode())
            except OSError as error:
                failures.append(error)
                if asked.was_sent and not is_safe:
                    break
        self._turn = (self._turn + 1) % len(members)
        raise failures[0]


class _Request:
    """One request to one member, on a connection of its own.

    A connection that is kept is closed by the other end at some moment, and then nobody knows
    whether a write has arrived; the register is written seldom.
    """

    def __init__(self, member: tuple[str, int], tls: RenewedTls | None) -> None:
        host, port = member
        self._where = f"etcd at [{host}]:{port}" if ":" in host else f"etcd at {host}:{port}"
        self._tls, self._host = tls, host
        self._connection: HTTPConnection = (
            HTTPConnection(host, port, timeout=ANSWER_S)
            if tls is None
            else HTTPSConnection(host, port, timeout=ANSWER_S, context=tls.context())
        )
        self.was_sent = False
        """Whether the member may have got it."""

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Return what the member answers.

        Raises:
            OSError: it cannot be reached, fails, or refuses.
        """
        try:
            self._connection.connect()
            self.was_sent = True
            self._connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            status, data = response.status, response.read()
        except ssl.SSLError as error:
            raise EtcdRefusedError(errno.EIO, self._fault(error), self._where) from error
        except OSError as error:
            said = error.strerror if isinstance(error.strerror, str) else str(error)
            raise OSError(error.errno or errno.EIO, said, self._where) from error
        except HTTPException as error:
            said = str(error) or type(error).__name__
            raise OSError(errno.EIO, said, self._where) from error
        finally:
            self._connection.close()
        if status != HTTPStatus.OK:
            kind = EtcdRefusedError if status in REFUSING else OSError
            raise kind(errno.EIO, _said(data) or f"HTTP status {status}", self._where)
        if "header" in (found := _json(data)):
            return found
        raise OSError(errno.EIO, "it answers with something else than etcd does", self._where)

    def _fault(self, error: ssl.SSLError) -> str:
        files = TlsFiles() if self._tls is None else self._tls.files
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate {flaw_of(error, files.ca, self._host)}"
        if not files.certificate:  # it says so only to who has one
            return "it ends the connection: does it want a certificate (?cert=FILE&key=FILE)?"
        return f"it ends the connection: {error.reason or error}"


def _said(data: bytes) -> str:
    """Return the sentence of an answer that is an error."""
    found = _json(data)
    said = found.get("message") or found.get("error") or data.decode(errors="replace")
    return " ".join(str(said).split())[:200]


def _json(data: bytes) -> dict[str, Any]:
    """Return the object of an answer; nothing, if it is none."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
