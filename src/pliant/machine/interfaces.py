"""The addresses of this host: which there are, which of them others reach, and which nobody else.

Owns that what listens is bound to one address, and how that one is chosen: the one that was named,
or that of the interface by which another host is reached.  Knows nothing of what listens there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import pwd
import socket
import struct
from dataclasses import dataclass
from urllib.parse import urlsplit

from pliant.core.errors import ConfigError

_HEADER, _ADDRESS, _ATTRIBUTE = (
    struct.Struct("=IHHII"),
    struct.Struct("=BBBBI"),
    struct.Struct("=HH"),
)
_GET_ADDRESSES, _DUMP, _DONE, _ERROR = 22, 0x301, 3, 2
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RECORDS_BYTES = 1 << 16
_ANY_PORT = 9
"""Nothing is sent there: the kernel is asked for the way only."""


@dataclass(frozen=True, slots=True)
class HostAddress:
    """One address of this host, and the interface that has it."""

    address: str
    interface: str

    @property
    def is_loopback(self) -> bool:
        """Whether no other host reaches it."""
        return is_loopback(self.address)

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def is_loopback(address: str) -> bool:
    """Whether an address is of the machine that uses it, whichever that is."""
    return ipaddress.ip_address(address).is_loopback


def host_addresses() -> tuple[HostAddress, ...]:
    """Return the addresses of this host, loopback's last.

    Without those that mean something on one link only (``fe80::``): who is told one cannot use it.
    """
    try:
        found = tuple(_asked_of_the_kernel())
    except OSError:
        found = ()
    known = (one for one in found if not ipaddress.ip_address(one.address).is_link_local)
    return tuple(sorted(known, key=lambda one: one.is_loopback))


def split_place(text: str, option: str) -> tuple[str, int]:
    """Read ``HOST:PORT`` or ``[HOST]:PORT``.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if is_bracketed else host
    if not colon or not plain or (":" in plain) != is_bracketed or not port.isascii():
        raise ConfigError(
            f"{option} {text} is no HOST:PORT, such as 10.0.0.1:7000, gpu1:7000 or [fd00::1]:7000"
        )
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{option} {text}: the port must be between 1 and 65535")
    return plain, int(port)


def place_of(join: str) -> tuple[str, int | None]:
    """Return the host of a coordinator, and its port, of ``HOST:PORT`` or a URL.

    Raises:
        ConfigError: it is neither.
    """
    if "://" not in join:
        return split_place(join, "--join")
    try:
        parts = urlsplit(join)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"--join {join} is neither HOST:PORT nor a URL, as https://gpu1:7000")
    return host, port


def others_reach() -> tuple[HostAddress, ...]:
    """Return the addresses of this host that are not loopback's."""
    return tuple(one for one in host_addresses() if not one.is_loopback)


def address_named(text: str, option: str) -> str:
    """Return the address of this host that is meant by an address, an interface or a host's name.

    Raises:
        ConfigError: this host has no such address, or it would be all of them.
    """
    known = host_addresses()
    if any(one.interface == text for one in known):
        return next(one.address for one in known if one.interface == text)
    try:
        address = resolved(text, option)
    except ConfigError as error:
        raise ConfigError(
            f"{error}, nor is it an interface; there are {addresses_in_words(known)}"
        ) from None
    return _own(address, text, option, known)


def address_towards(address: str) -> str:
    """Return the address of this host from which a host is reached.

    Raises:
        ConfigError: there is no way to it.
    """
    if ipaddress.ip_address(address).is_unspecified:
        raise ConfigError(
            f"{address} stands for all addresses of a host, and is none by which others reach it; "
            "--join names the one that the coordinator's --listen does"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, _ANY_PORT))
            return str(sock.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"this host has no way to {address}: {error.strerror}; its addresses are "
            f"{addresses_in_words(host_addresses())}"
        ) from None


class UnknownHostError(ConfigError):
    """No host of a name is known here; it may be later."""


def resolved(host: str, option: str) -> str:
    """Return the address of a host, as this one finds it.

    Raises:
        UnknownHostError: it has none that is known here.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        sentence = f"{option} {host}: no host of this name is known here: {why}"
        raise UnknownHostError(sentence) from None
    return str(found[0][4][0])


def interface_of(address: str) -> str:
    """Return the interface that has an address of this host.

    Raises:
        ConfigError: none has it.
    """
    if is_loopback(address):  # all of 127.0.0.0/8 is this host, and listed is one
        return INTERFACE
    wanted, known = ipaddress.ip_address(address), host_addresses()
    for one in known:
        if ipaddress.ip_address(one.address) == wanted:
            return one.interface
    raise ConfigError(
        f"no interface of this host has the address {address}; it has {addresses_in_words(known)}"
    )


def is_own(address: str) -> bool:
    """Whether an address is one of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def addresses_in_words(addresses: tuple[HostAddress, ...], *, none: str = "none") -> str:
    """Name addresses for people."""
    return ", ".join(map(str, addresses)) or none


def _own(address: str, text: str, option: str, known: tuple[HostAddress, ...]) -> str:
    if ipaddress.ip_address(address).is_unspecified:
        raise ConfigError(
            f"{option} {text} would be every interface of this host; name the one that the "
            f"others reach: {addresses_in_words(known)}"
        )
    if not is_own(address):
        means = "" if address == text else f", which is {address},"
        raise ConfigError(
            f"{option} {text}{means} is no address of this host; it has {addresses_in_words(known)}"
        )
    if is_loopback(address) and not _means_loopback(text) and (others := others_reach()):
        raise ConfigError(
            f"{option} {text} is {address} on this host, which no other host reaches (see "
            f"/etc/hosts); give an address: {addresses_in_words(others)}"
        )
    return address


def _means_loopback(text: str) -> bool:
    try:
        return is_loopback(text)
    except ValueError:
        return text == "localhost"


def _asked_of_the_kernel() -> list[HostAddress]:
    """Return all addresses (rtnetlink(7))."""
    found: list[HostAddress] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        size = _HEADER.size + _ADDRESS.size
        request = _HEADER.pack(size, _GET_ADDRESSES, _DUMP, 1, 0)
        sock.send(request + _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        while True:
            data = sock.recv(_RECORDS_BYTES)
            while len(data) >= _HEADER.size:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind in (_DONE, _ERROR) or length < _HEADER.size:
                    return found
                if (one := _address_in(data[_HEADER.size : length])) is not None:
                    found.append(one)
                data = data[(length + 3) & ~3 :]


def _address_in(record: bytes) -> HostAddress | None:
    family, _, _, _, index = _ADDRESS.unpack_from(record)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values: dict[int, bytes] = {}
    rest = record[_ADDRESS.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = rest[_ATTRIBUTE.size : length]
        rest = rest[(length + 3) & ~3 :]
    raw = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    if raw is None:
        return None
    try:
        return HostAddress(socket.inet_ntop(family, raw), socket.if_indextoname(index))
    except OSError:  # the interface was removed since
        return None


IPV4, IPV6 = "127.0.0.1", "::1"

INTERFACE = "lo"
"""What Linux calls it."""


def loopback() -> str:
    """Return an address of this machine that no other reaches; on hosts with IPv6 only, that."""
    for family, address in ((socket.AF_INET, IPV4), (socket.AF_INET6, IPV6)):
        try:
            with socket.socket(family) as sock:
                sock.bind((address, 0))
        except OSError:
            continue
        return address
    return IPV4


_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The process that opened a connection, as it was then."""

    uid: int
    gid: int
    pid: int


def peer_of(sock: socket.socket) -> Credentials | None:
    """Return who has connected; None: it is no Unix socket."""
    if sock.family != socket.AF_UNIX:
        return None
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Credentials(uid=uid, gid=gid, pid=pid)


_names: dict[int, str] = {}
"""Users that were looked up: a directory service may be slow, or be away for a while."""


def user_name(uid: int) -> str:
    """Return what a user is called; its number if it has no name here.

    Once known, a name stays: in a shared pool claims are called by it.
    """
    if uid not in _names:
        try:
            _names[uid] = pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)
    return _names[uid]


_TCP_RTO_MAX_MS = 44
_LONGEST_MS = 1000
"""The shortest that the kernel takes for a longest wait: what it costs is a packet a second."""


def send_again_soon(sock: socket.socket) -> None:
    """Let a socket, and each that a listening one accepts, be used again soon after a cut.

    TCP waits twice as long before each further attempt, so a link that was cut for 7 s is used
    again after up to 13, and a peer that waits for 10 has given up on one that is well.  Newer
    kernels (Linux 6.15) let a socket say how long it waits at most.
    """
    with contextlib.suppress(OSError):  # an older kernel, or no TCP
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_MS)
