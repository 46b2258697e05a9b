"""What listens is bound to one address, and which one is told."""

from __future__ import annotations

import errno
import pwd
import socket

import pytest

from pliant.core.errors import ConfigError
from pliant.machine import interfaces
from pliant.machine.interfaces import (
    HostAddress,
    address_named,
    address_towards,
    host_addresses,
    interface_of,
    is_own,
    resolved,
    split_place,
    user_name,
)

HERE = (HostAddress("10.0.0.1", "eth0"), HostAddress("127.0.0.1", "lo"))


def test_the_addresses_of_this_host_are_those_it_can_listen_on() -> None:
    found = host_addresses()

    assert HostAddress("127.0.0.1", "lo") in found
    assert all(is_own(one.address) for one in found)
    assert [one.is_loopback for one in found] == sorted(one.is_loopback for one in found)


def test_an_address_is_found_at_its_interface_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = (*HERE, HostAddress("fd00::1", "eth1"))
    monkeypatch.setattr(interfaces, "host_addresses", lambda: known)

    assert interface_of("10.0.0.1") == "eth0"
    assert interface_of("fd00:0::0001") == "eth1"
    assert interface_of("127.0.0.7") == "lo"
    with pytest.raises(ConfigError, match=r"no interface of this host has the address 10\.0\.0\.9"):
        interface_of("10.0.0.9")


def test_an_interface_that_is_removed_meanwhile_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.if_indextoname
    gone = socket.if_nametoindex("lo")

    def name_of(index: int) -> str:
        if index == gone:
            raise OSError(errno.ENXIO, "No such device or address")
        return real(index)

    before = host_addresses()
    monkeypatch.setattr(socket, "if_indextoname", name_of)

    assert host_addresses() == tuple(one for one in before if one.interface != "lo")


@pytest.mark.parametrize("name", ["127.0.0.1", "lo", "localhost"])
def test_an_address_an_interface_or_a_name_is_found(name: str) -> None:
    assert address_named(name, "--listen") in ("127.0.0.1", "::1")


def test_a_name_that_is_loopback_here_is_refused_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Debian gives a host's own name to 127.0.1.1."""
    monkeypatch.setattr(interfaces, "host_addresses", lambda: HERE)
    monkeypatch.setattr(interfaces, "resolved", lambda host, option: "127.0.1.1")

    with pytest.raises(ConfigError) as caught:
        address_named("gpu1", "--listen")

    assert str(caught.value) == (
        "--listen gpu1 is 127.0.1.1 on this host, which no other host reaches (see /etc/hosts); "
        "give an address: 10.0.0.1 (eth0)"
    )


def test_what_is_neither_a_host_nor_an_interface_is_told_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(host: str, option: str) -> str:
        raise ConfigError(f"{option} {host}: no host of this name is known here")

    monkeypatch.setattr(interfaces, "host_addresses", lambda: HERE)
    monkeypatch.setattr(interfaces, "resolved", unknown)

    with pytest.raises(ConfigError, match=r"nor is it an interface; there are 10\.0\.0\.1"):
        address_named("eth7", "--interface")


def test_the_way_to_a_host_tells_the_address() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


def test_a_host_without_a_way_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(socket.socket):
        def connect(self, address: object, /) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(interfaces, "host_addresses", lambda: HERE[1:])
    monkeypatch.setattr(socket, "socket", Unreachable)

    with pytest.raises(ConfigError) as caught:
        address_towards("10.0.0.1")

    assert str(caught.value) == (
        "this host has no way to 10.0.0.1: Network is unreachable; its addresses are 127.0.0.1 (lo)"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("gpu1:7000", ("gpu1", 7000)),
        ("[fd00::1]:7000", ("fd00::1", 7000)),
    ],
)
def test_a_place_is_a_host_and_a_port(text: str, place: tuple[str, int]) -> None:
    assert split_place(text, "--join") == place


@pytest.mark.parametrize("text", ["gpu1", ":7000", "fd00::1:7000", "gpu1:", "gpu1:http", "[]:1"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        split_place(text, "--join")


def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--join nobody\.invalid: no host of this name"):
        resolved("nobody.invalid", "--join")


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_what_stands_for_all_addresses_is_no_way_to_a_coordinator(address: str) -> None:
    """The kernel takes it for this host: an agent waited there for five minutes."""
    with pytest.raises(ConfigError, match="stands for all addresses of a host"):
        address_towards(address)


class Directory:
    """A directory service of users that may be away."""

    def __init__(self) -> None:
        self.is_away = True
        self.asked = 0

    def getpwuid(self, uid: int) -> pwd.struct_passwd:
        self.asked += 1
        if self.is_away:
            raise KeyError(uid)
        return pwd.struct_passwd(("ada", "x", uid, uid, "", "/", "/bin/sh"))


def test_a_user_that_is_known_keeps_its_name_while_the_directory_service_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Claims of a shared pool are called by it: another name would be another claim."""
    service = Directory()
    monkeypatch.setattr(pwd, "getpwuid", service.getpwuid)
    assert user_name(987_001) == "987001"
    service.is_away = False
    assert user_name(987_001) == "ada"

    service.is_away = True

    assert user_name(987_001) == "ada"
    assert service.asked == 2
