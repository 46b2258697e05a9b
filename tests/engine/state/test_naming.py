"""A difference between replicas is told by name, with its values and whose they are."""

from __future__ import annotations

import torch

from pliant.engine.state import naming


def test_the_first_difference_names_each_value_and_who_has_it() -> None:
    states = [{"training": {"": True, "body": flag}} for flag in (True, False, True)]

    told = naming.difference([naming.named(state) for state in states], ["r1", "r4", "r7"])

    assert told == (
        "training of module 'body' (train() or eval()) differs between replicas "
        "(True on r1, r7; False on r4)"
    )


def test_what_only_one_has_differs_and_who_says_nothing_does_not() -> None:
    said = [{"lr of scheduler 0": "1"}, {"lr of scheduler 0": "1", "more": "2"}, {}]

    assert naming.difference(said[:1] * 2, ["r1", "r2"]) is None
    assert naming.difference([said[0], said[2]], ["r1", "r2"]) is None
    assert naming.difference(said, ["r1", "r2", "r3"]) == (
        "more differs between replicas (not there on r1; 2 on r2)"
    )


def test_every_place_of_a_state_has_a_name() -> None:
    state = {
        "parameters": {"w": torch.zeros(2)},
        "buffers": {"mean": torch.zeros(())},
        "requires_grad": {"w": True},
        "modules": {"body": {"scale": 2.0}},
        "optimizers": [
            {
                "groups": [{"params": ["w"], "values": {"lr": 0.1}}],
                "state": {"w": {"step": 3}},
                "attributes": {"count": 4},
            }
        ],
        "schedulers": [{"last_epoch": 1}],
        "scaler": {"scale": 2.0},
        "extra": {"": {"n": 1}, "average": {"w": [1, 2]}},
    }

    assert list(naming.named(state)) == [
        "parameter 'w'",
        "buffer 'mean'",
        "requires_grad of 'w'",
        "the extra state of module 'body'['scale']",
        "params of parameter group 0 of optimizer 0",
        "lr of parameter group 0 of optimizer 0",
        "step of 'w' in the state of optimizer 0",
        "count of optimizer 0",
        "last_epoch of scheduler 0",
        "state['scaler']['scale']",
        "extra_state['n']",
        "extra_state['average']['w']",
    ]


def test_texts_are_short_and_equal_only_for_equal_values() -> None:
    texts = [
        naming.named({"x": value})["state['x']"]
        for value in (-0.0, 0.0, torch.tensor(-0.0), torch.tensor(0.0), "a" * 99, "a" * 98, object)
    ]
    texts += [naming.named({"x": [torch.full((2,), n)]})["state['x']"] for n in range(20)]

    assert len(set(texts)) == 27
    assert max(map(len, texts)) < 100
