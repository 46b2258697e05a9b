"""A cluster's file is read, or refused in one sentence with its line."""

from __future__ import annotations

import pytest

from pliant.core.errors import ConfigError
from pliant.spec.cluster import ClusterFile
from pliant.spec.load import parse

HEAD = "apiVersion: pliant.dev/v1alpha1\nkind: Cluster\nspec:\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(ClusterFile, HEAD + text, source="c.yaml")
    return str(caught.value)


def test_nodes_and_teams_are_read() -> None:
    spec = parse(
        ClusterFile,
        HEAD + "  nodes: [{name: a, count: 4, devices: 8, pricePerDeviceHour: 2.5}]\n"
        "  teams: [{name: vision, quota: 5}]\n",
        source="c.yaml",
    ).spec

    assert spec.devices == 32
    assert spec.teams[0].name == "vision"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("  nodes: []\n", "c.yaml line 4: spec.nodes must not be empty"),
        ("  nodes: [{name: a, count: 0}]\n",
         "c.yaml line 4: spec.nodes[0].count must be at least 1, not 0"),
        ("  nodes: [{name: a, count: 1}, {name: a, count: 1}]\n",
         "c.yaml line 3: group of nodes a is given twice"),
        ("  nodes: [{name: a, count: 100000, devices: 8}]\n",
         "c.yaml line 3: spec.nodes have 800000 devices between them; at most 100000 can be"
         " simulated"),
        ("  nodes: [{name: a, count: 1}]\n  teams: [{name: t, quota: 2}]\n",
         "c.yaml line 3: the quotas 2 (t) are more than the pool's 1 devices; lower one or give the"
         " pool more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(text: str, sentence: str) -> None:
    assert refusal(text) == sentence
