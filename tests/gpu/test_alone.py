"""One script on a GPU: the same bits each time, and those of a plain loop."""

from __future__ import annotations

from tests.gpu.here import on_gpu, told

pytestmark = on_gpu


def test_each_process_computes_the_same_bits_and_those_of_a_plain_loop() -> None:
    found = [told("-m", "tests.gpu.bits") for _ in range(3)]

    assert found[0] == found[1] == found[2]
    assert found[0]["session"] == found[0]["loop"]
