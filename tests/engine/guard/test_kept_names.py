"""What a loop keeps from one micro-batch for the next is named; what only adds up is told apart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.engine.models import Points
from torch import nn

import pliant
from pliant.engine.guard.kept_names import functions_of, kept, loop_at

CLASSES = """\
class Reader:
    def next(self):
        self.at += 4
        return data[self.at - 4:self.at]
class Meter:
    def update(self, value):
        self.sum += value
        self.mean = self.sum / 7
"""


@pytest.mark.parametrize(
    ("body", "changed", "used", "added"),
    [
        ("step.backward(f(X, Y)); X, Y = get()", "X Y", "X Y", ""),
        ("X, Y = get(); step.backward(f(X, Y))", "X Y", "", ""),
        ("X = batch.cuda() if gpu else batch; step.backward(f(X))", "X", "", ""),
        ("loss = f(batch); total += loss.item(); print(total)", "loss total", "", "total"),
        ("out, state = f(batch, state)", "out state", "state", ""),
        ("at += 4; step.backward(f(data[at]))", "at", "at", ""),
        ("losses.append(f(batch).item())", "losses", "", "losses"),
        ("ema.mul_(0.9); step.backward(f(batch, ema))", "ema", "ema", ""),
        ("x = reader.next(); step.backward(f(x))", "x reader.at", "reader.at", ""),
        ("meter.update(f(batch))", "meter.sum meter.mean", "", "meter.sum"),
        ("step.backward(f(self.X)); self.X = get()", "self.X", "self.X", ""),
        ("both = [w * state for w in batch]; state = both[0]", "both state w", "state", ""),
        ("""
         try:
             X = get()
         except OSError:
             continue
         step.backward(f(X))
         """, "X", "", ""),
        ("""
         with torch.autocast("cpu") as how:
             for part in batch:
                 y = f(part, how)
         del y
         """, "part how", "", ""),
    ],
)  # fmt: skip
def test_a_name_is_kept_if_it_is_used_before_it_is_set(
    body: str, changed: str, used: str, added: str
) -> None:
    text = (
        CLASSES + "for batch in step:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    ).encode()
    loop = loop_at(text, CLASSES.count("\n") + 1)

    assert loop is not None
    found = kept(changed.split(), loop, list(functions_of(text)))

    assert found == (used.split(), added.split())


def test_a_line_without_a_loop_and_a_text_that_is_no_python_have_no_names() -> None:
    assert loop_at(b"for a in b:\n    pass\n", 2) is None
    assert loop_at(b"for a in", 1) is None


def drawn() -> Iterator[torch.Tensor]:
    return iter(torch.randn(100, 2, 4))


def test_a_batch_that_is_drawn_ahead_is_named_and_so_is_a_sum(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    windows = drawn()
    x, total = next(windows), 0.0
    given: dict[str, Any] = {"global_batch_size": 8, "micro_batch_size": 2, "dataset": Points(32)}
    with pliant.Session(model=model, optimizer=optimizer, **given) as session:
        for step in session.steps(4):
            for _ in step:
                loss = model(x).square().mean()
                step.backward(loss)
                total += loss.item()
                x = next(windows)

    told = capsys.readouterr().err
    assert total > 0.0
    assert told.count("the script keeps 'x' from one micro-batch for the next") == 2  # and the end
    assert told.count("the script adds up 'total' over the micro-batches of its own replica") == 2
    assert "'loss'" not in told
