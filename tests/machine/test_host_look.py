"""What is found out of this host, and that it takes no long."""

from __future__ import annotations

import socket

import pytest

from pliant.machine import host_look
from pliant.machine.host_look import connect_obstacle


def test_a_place_that_answers_is_told_from_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_look, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connect_obstacle("127.0.0.1", port)[0] == ""
    assert connect_obstacle("127.0.0.1", port)[0] == "connection refused"


def test_an_engine_that_cannot_be_imported_says_its_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_look, "_IMPORT", "import sys; sys.exit('libcuda is gone')")
    assert host_look.torch_here() == ("", "libcuda is gone")

    monkeypatch.setattr(host_look, "_IMPORT", "import threading; threading.Event().wait()")
    monkeypatch.setattr(host_look, "TORCH_S", 0.5)
    assert host_look.torch_here() == ("", "importing it takes longer than 0.5 s")
