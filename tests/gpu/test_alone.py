"""One script on a GPU: the same bits each time, and those of a plain loop; what is refused."""

from __future__ import annotations

from tests.gpu.here import on_gpu, told

pytestmark = on_gpu


def test_each_process_computes_the_same_bits_and_those_of_a_plain_loop() -> None:
    found = [told("-m", "tests.gpu.bits") for _ in range(3)]

    assert found[0] == found[1] == found[2]
    assert found[0]["session"] == found[0]["loop"]


def test_exact_mode_says_what_the_device_is_and_refuses_what_has_no_equal_bits() -> None:
    said = told("-m", "tests.gpu.exact")

    assert "multiprocessors, capability" in said["identity"]["device"]
    assert said["identity"]["device_blas"].count(".") == 2
    assert set(said["numerics"]) == {said["identity"]["device_numerics"]}
    assert said["pooled"].startswith("avg_pool3d_backward_cuda gives other bits")
    assert "leave make_graphed_callables out" in said["recorded"]
    assert "mode='max-autotune-no-cudagraphs'" in said["compiled"]
    assert "mode='max-autotune-no-cudagraphs'" in said["function compiled"]
    assert "while a graph of kernels is captured" in said["captured"]
