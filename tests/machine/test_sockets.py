"""Users are called by their names."""

from __future__ import annotations

import pwd

import pytest

from pliant.machine.sockets import user_name


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
