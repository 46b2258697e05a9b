"""Where a node says that it is."""

from __future__ import annotations

import socket

import pytest

from pliant.agent.node_facts import node_labels
from pliant.wire import bounds


def test_a_node_says_its_host_unless_it_is_told_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu1")

    assert node_labels((("rack", "a"),)) == (("host", "gpu1"), ("rack", "a"))
    assert node_labels((("host", "box"),)) == (("host", "box"),)


@pytest.mark.parametrize("name", ["", "x" * 200, "a b", "_", "\u00e9"])
def test_whatever_a_host_is_called_its_labels_can_be_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    most = tuple((f"k{number}", "v") for number in range(bounds.MOST_LABELS))

    for given in ((), most):
        assert bounds.excess({"labels": node_labels(given)}) is None
