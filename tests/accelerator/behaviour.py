"""What the test accelerator does as an accelerator does it; run by ``test_sim``."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable

import torch
from tests.accelerator import checks, sim
from torch import nn
from torch.nn import functional

import pliant

OPERATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t @ t,
    lambda t: t.softmax(-1),
    lambda t: t.sort(-1)[1],
    lambda t: t[t > 0],
    lambda t: t.nonzero(),
    lambda t: t.t().contiguous(),
    lambda t: torch.cat([t, t]),
    lambda t: t.unfold(0, 2, 2),
    lambda t: torch.linalg.inv(t + 9 * torch.eye(8, device=t.device)),
    lambda t: t.cumsum(0),
    lambda t: torch.where(t > 0, t, 0.0),
    lambda t: t.view(-1).msort(),
    lambda t: torch.einsum("ij,kj->ik", t, t),
    lambda t: t.norm(),
    lambda t: torch.stack(t.unbind(0)),
    lambda t: t.bfloat16().float(),
    lambda t: functional.pad(t, (1, 1)),
    lambda t: t.index_select(0, torch.tensor([1, 2], device=t.device)),
    lambda t: t[[0, 3]],
    lambda t: functional.layer_norm(t, (8,)),
    lambda t: functional.group_norm(t, 2),
    lambda t: functional.conv2d(t[None, None], t[None, None, :3, :3]),
    lambda t: torch.add(t, t, out=torch.empty(0, device=t.device)),
    lambda t: torch._foreach_mul([t, t], 2.5)[1],
    lambda t: t.sum() * 0.1,  # a number beside a 0-dim tensor stays a number
]


def train(device: str, steps: int = 4) -> list[torch.Tensor]:
    """Train a small model; return its parameters, on the host."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 20))
    with torch.no_grad():
        model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    for step in range(steps):
        tokens = (torch.arange(48) * (step + 3) % 20).reshape(6, 8).to(device)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def check_a_script_finds_its_device() -> None:
    os.environ.pop("LOCAL_RANK", None)
    assert pliant.device() == torch.device("sim", 0)
    os.environ["LOCAL_RANK"] = "1"
    assert pliant.device() == torch.device("sim", 1)


class Gate:
    """Holds the current stream up until it is opened; if no stream is late it is open at once."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        if not sim.install().is_async():
            self.open()
        sim.install().launch(0, [], lambda _: self._opened.wait(60))

    def open(self) -> None:
        self._opened.set()


def error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except (RuntimeError, TypeError) as error:
        return str(error)
    raise AssertionError("it was allowed")


def check_it_is_what_torch_calls_an_accelerator() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.device_count() == 2
    assert torch.ones(2, device="sim:1").device == torch.device("sim:1")


def check_operations_have_the_bits_of_the_cpu() -> None:
    torch.manual_seed(1)
    host = torch.randn(8, 8)
    for number, operation in enumerate(OPERATIONS):
        here, there = operation(host), operation(host.to("sim"))
        assert there.device.type == "sim", number
        assert torch.equal(here, there.cpu()), number


def check_training_has_the_bits_of_the_cpu() -> None:
    assert all(map(torch.equal, train("cpu"), train("sim")))


def check_two_devices_and_the_host_do_not_mix() -> None:
    one, other, host = torch.ones(3, device="sim:0"), torch.ones(3, device="sim:1"), torch.ones(3)
    assert "same device" in error_of(lambda: one + other)
    assert "same device" in error_of(lambda: one + host)
    assert "convert" in error_of(lambda: one.numpy())
    assert torch.equal((one + torch.tensor(2.0)).cpu(), host * 3)


def check_generators_are_the_device_s_own() -> None:
    torch.manual_seed(3)
    first = functional.dropout(torch.ones(1000, device="sim"), 0.5)
    second = functional.dropout(torch.ones(1000, device="sim"), 0.5)
    state = torch.get_rng_state()
    torch.rand(4, device="sim")
    assert torch.equal(state, torch.get_rng_state()), "the host's generator has moved"
    torch.manual_seed(3)
    assert torch.equal(first.cpu(), functional.dropout(torch.ones(1000, device="sim"), 0.5).cpu())
    assert not torch.equal(first.cpu(), second.cpu())
    assert "'sim'" in error_of(
        lambda: torch.randn(5, device="sim", generator=torch.Generator(device="cpu"))
    )


def check_moving_a_module_keeps_its_parameters() -> None:
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    two.weight = one.weight
    both = nn.ModuleList([one, two]).to("sim")
    assert both[0].weight is both[1].weight is one.weight


def check_states_are_saved_and_loaded_on_either_side() -> None:
    model, buffer = nn.Linear(3, 3).to("sim"), io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer)["weight"].device.type == "sim"
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["weight"].device.type == "cpu"


def check_memory_is_counted_and_ends() -> None:
    before = torch.accelerator.memory_allocated()
    kept = torch.empty(1 << 20, device="sim")
    assert torch.accelerator.memory_allocated() - before == kept.nbytes
    assert "out of memory" in error_of(lambda: torch.empty(1 << 40, device="sim"))


def check_waits_are_counted_by_caller() -> None:
    number = torch.ones(3, device="sim").sum()
    with sim.install().waits() as counted:
        torch.ones(3, device="sim").add_(1)
        number.item()
    assert list(counted.values()) == [1], counted
    assert "behaviour.py" in next(iter(counted))


def check_a_late_copy_into_pinned_memory_is_late() -> None:
    device, host = torch.full((1000,), 5.0, device="sim"), torch.zeros(1000, pin_memory=True)
    gate = Gate()
    host.copy_(device, non_blocking=True)
    before = host[0].item()
    gate.open()
    torch.accelerator.synchronize()
    assert (before, host[0].item()) == (0.0 if sim.install().is_async() else 5.0, 5.0)


def check_a_missing_wait_gives_other_numbers_and_a_wait_the_right_ones() -> None:
    right = {}
    for waits in (False, True):
        tensor, stream = torch.zeros(64, device="sim"), torch.Stream("sim")
        torch.accelerator.synchronize()
        gate = Gate()
        tensor.add_(1)
        if waits:
            stream.wait_stream(torch.accelerator.current_stream())
            gate.open()
        with stream:
            doubled = tensor * 2
        stream.synchronize()
        gate.open()
        right[waits] = doubled.cpu()[0].item() == 2
    assert right == {False: not sim.install().is_async(), True: True}


def check_without_record_stream_memory_is_used_again_too_early() -> None:
    right = {}
    for records in (False, True):
        stream, tensor = torch.Stream("sim"), torch.full((4096,), 7.0, device="sim")
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            gate = Gate()
            copy = tensor + 0
        if records:
            tensor.record_stream(stream)
        del tensor
        other = torch.full((4096,), 9.0, device="sim")
        torch.accelerator.current_stream().synchronize()
        gate.open()
        torch.accelerator.synchronize()
        right[records] = copy.cpu()[5].item() == 7
        del other
    assert right == {False: not sim.install().is_async(), True: True}


def check_a_failed_device_stays_failed_and_the_other_works() -> None:
    """The last check: nothing works on that device from here on."""
    torch.sim.fail(1, "fell off")  # type: ignore[attr-defined]
    assert "fell off" in error_of(lambda: torch.ones(3, device="sim:1"))
    assert "fell off" in error_of(lambda: torch.ones(3, device="sim:1"))
    assert torch.ones(3, device="sim:0").sum().item() == 3


if __name__ == "__main__":
    checks.main(globals())
