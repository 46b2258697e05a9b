"""The test accelerator: ``install`` makes ``torch.device("sim")`` exist in this process.

It is what torch calls an accelerator, without hardware.  Code on the CPU cannot touch its memory,
and its streams are as late as they want to be: a missing wait gives other numbers.  ``streams.h``,
``memory.h``, ``random.h``, ``kernels.h`` and ``collectives.h`` say how.  In the environment:

    SIM_DEVICES=2   SIM_MEM_MB=4096   SIM_ASYNC=0   SIM_DELAY_US=300   SIM_SEED=0
    SIM_MODEL=Sim   how it is called; {pid} stands for the process

Tests play delays of SIM_SEEDS seeds, where that is set.

Of the operations of ``torch.testing._internal.common_methods_invocations.op_db`` three samples each
were compared with the CPU, bit by bit and with their gradients, in float32 (torch 2.15, a minute;
``expecttest`` replaced by ``unittest``).  All that the CPU has and that draws nothing has its bits.

Not covered: fused LSTM and GRU cells, fft (both are refused), sparse tensors, torch.compile, fork
after the first use of an asynchronous stream.  Attention is mathematics only: the CPU has its bits
under ``sdpa_kernel(SDPBackend.MATH)``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_HERE = Path(__file__).parent
_NAME = "sim_extension"
_SOURCES = ("sim.cpp", "collectives.h", "kernels.h", "memory.h", "random.h", "streams.h")

TORCH = Path(torch.__file__).parent


def why_not() -> str:
    """Return why it cannot be built here; empty if it can."""
    if torch.__version__.startswith("2.11."):
        return "torch 2.11 aborts where a stream of the test accelerator lets go of a tensor"
    missing = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    return f"the test accelerator needs {' and '.join(missing)}" if missing else ""


@cache
def install() -> Any:
    """Build it, unless it was built before; then make torch know it.  Return ``torch.sim``."""
    extension = _built()
    torch.utils.rename_privateuse1_backend("sim")
    module = _module(extension)
    torch._register_device_module("sim", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # Else Module.to makes new parameters, and ties and hooks are lost.
    torch.__future__.set_swap_module_params_on_conversion(True)
    _register_collectives(extension)
    return module


def _register_collectives(extension: Any) -> None:
    """Make process groups possible, as ``cpu:gloo,sim:simgloo``."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    def made(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return extension.collectives(ProcessGroupGloo(store, rank, size, timeout))

    dist.Backend.register_backend("simgloo", made, devices=["sim"])


def move(case: Any, device: str) -> None:
    """Move a model, and what its script computes with."""
    case.model.to(device)
    compute = case.compute

    def on_device(batch: Any) -> tuple[torch.Tensor, float | None]:
        result: tuple[torch.Tensor, float | None] = compute(to(batch, device))
        return result

    case.compute = on_device


def to(batch: Any, device: str) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to(part, device) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(to(part, device) for part in batch)
    return batch


def _built() -> Any:
    """Load the extension; its folder is named by what it is made of."""
    hasher = hashlib.blake2b(f"{torch.__version__} {sys.version}".encode(), digest_size=8)
    for name in _SOURCES:
        hasher.update((_HERE / name).read_bytes())
    folder = Path(sysconfig.get_path("purelib")) / f"pliant-test-accelerator-{hasher.hexdigest()}"
    whole = folder / "whole"
    if whole.exists():  # torch would look for a compiler again
        spec = importlib.util.spec_from_file_location(_NAME, folder / f"{_NAME}.so")
        assert spec is not None
        assert spec.loader is not None
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension
    from torch.utils import cpp_extension

    folder.mkdir(exist_ok=True)
    extension = cpp_extension.load(
        _NAME,
        [str(_HERE / "sim.cpp")],
        build_directory=str(folder),
        extra_cflags=["-O1", "-std=c++20"],
    )
    whole.touch()
    return extension


def _module(extension: Any) -> ModuleType:
    """Return what torch wants of a device module, and what tests want of this one."""
    accelerator = torch.accelerator
    module: Any = ModuleType("torch.sim")

    def index_of(device: Any) -> int:
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return accelerator.current_device_index() if index is None else index

    def generator(device: Any = None) -> torch.Generator:
        made: torch.Generator = extension.default_generator(index_of(device))
        return made

    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = extension.num_devices
    module.current_device = accelerator.current_device_index
    module.set_device = lambda device: accelerator.set_device_index(index_of(device))
    module.synchronize = lambda device=None: accelerator.synchronize(index_of(device))
    module.current_stream = lambda device=None: accelerator.current_stream(index_of(device))
    module.set_stream = accelerator.set_stream
    module.Stream = lambda device=None, **_: torch.Stream(device=f"sim:{index_of(device)}")
    module.Event = lambda **options: torch.Event(device="sim", **options)
    module.stream = module.StreamContext = _stream
    module.device = _Device
    module.manual_seed = lambda seed: generator().manual_seed(seed)
    module.manual_seed_all = lambda seed: [g.manual_seed(seed) for g in module.default_generators]
    module.initial_seed = lambda: generator().initial_seed()
    module.get_rng_state = lambda device="sim": generator(device).get_state()
    module.set_rng_state = lambda state, device="sim": generator(device).set_state(state)
    name = os.environ.get("SIM_MODEL", "Sim").replace("{pid}", str(os.getpid()))
    module.get_device_name = lambda device=None: name
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.memory_allocated = accelerator.memory_allocated
    module.max_memory_allocated = accelerator.max_memory_allocated
    module.empty_cache = accelerator.empty_cache
    module.default_generators = [generator(index) for index in range(extension.num_devices())]

    module.Gate = extension.Gate
    module.launch = extension.launch
    module.fail = extension.fail
    module.limit_memory = extension.limit_memory
    module.set_async = extension.set_async
    module.is_async = extension.is_async
    module.forbid_reads = extension.forbid_reads
    module.waits = lambda: _waits(extension)
    made: ModuleType = module
    return made


@contextmanager
def _stream(stream: Any) -> Iterator[Any]:
    if stream is None:
        yield None
        return
    with stream:
        yield stream


class _Device:
    """Makes a device the current one for a while."""

    def __init__(self, device: Any) -> None:
        self._index = device if isinstance(device, int) else torch.device(device).index

    def __enter__(self) -> None:
        self._before = torch.accelerator.current_device_index()
        if self._index is not None and self._index >= 0:
            torch.accelerator.set_device_index(self._index)

    def __exit__(self, *error: object) -> None:
        torch.accelerator.set_device_index(self._before)


@contextmanager
def _waits(extension: Any) -> Iterator[Counter[str]]:
    """Count each wait of this thread for a device, by the line outside torch that caused it."""
    import threading

    counted: Counter[str] = Counter()
    thread = threading.get_ident()

    def count() -> None:
        if threading.get_ident() != thread:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(TORCH):
            frame = frame.f_back
        counted[f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"] += 1

    extension.watch_waits(count)
    try:
        yield counted
    finally:
        extension.watch_waits(None)
