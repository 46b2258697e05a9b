"""Devices that have a kind and a name, and what confines a process to some of them.

Owns the notation of ``--devices`` and of ``spec.devices`` in the file of a pool, and the variables
by which each kind of accelerator is told which ones a process sees.  Must not know processes: who
starts one sets what is said here.

    8                      eight devices without a kind: numbers, as ever
    cuda:0-3               four GPUs: cuda:0, cuda:1, cuda:2, cuda:3
    cpu:0-3,4-7            two devices of four cores each: cpu:0-3, cpu:4-7
    cpu                    whatever cores there are, and no accelerator; nobody types that
    cuda:0,1+cpu:2-9       two kinds: the first is what a claim gets that asks for none
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pliant.core.device_masks import entries_of
from pliant.core.errors import ConfigError

CPU = "cpu"

DEVICE_NAMES = "PLIANT_DEVICE_NAMES"
"""Variable that names the devices of a process."""

VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("HIP_VISIBLE_DEVICES",),
    "xpu": ("ZE_AFFINITY_MASK",),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
    "neuron": ("NEURON_RT_VISIBLE_CORES",),
}
"""Variables that name the accelerators of a kind that a process sees, commas between them."""

NONE = {"rocm": "-1"}
"""What such a variable says where a process sees none, if not nothing."""

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Variable with which cuBLAS gives the same bits each time; read at a process's first product."""

INTERFACE = "NCCL_SOCKET_IFNAME"
"""Names the interface, behind =, on which NCCL opens its ports."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that say how many threads compute; set for cores, unless the user did."""

MOST_NAMED = 4096
"""Devices with names, and cores of one of them: a larger number is a mistake in typing."""

_PART = "cuda:MIG-"
_CUDA_NUMBER = re.compile(r"cuda:\d+")
_KIND = re.compile(r"[a-z][a-z0-9]{0,15}")
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")
_ITEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_/-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What confines a process to its devices."""

    variables: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    """Cores that it may run on; None: those that it was given already."""


def devices_in_words(devices: Iterable[int], names: Mapping[int, str]) -> str:
    """Return what people call these devices: by their names, or by their numbers."""
    numbers = tuple(devices)
    if any(names.get(number) for number in numbers):
        return ", ".join(names.get(number) or str(number) for number in numbers)
    return f"device{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def parse_devices(text: str, *, given: str = "--devices") -> int | tuple[str, ...]:
    """Return how many devices there are, or what they are called.

    Args:
        text: a number, or kinds with their devices.
        given: the option or the field that says so.

    Raises:
        ConfigError: it is neither, or names something twice.
    """
    if text.isdecimal():
        return int(text)
    said, names = f"{given} {text!r}", list[str]()
    seen: set[tuple[str, str]] = set()
    for group in text.split("+"):
        for name in _group(group, said):
            kind, _, what = name.partition(":")
            for part in map(str, _cores(what)) if kind == CPU else [what]:
                if (kind, part) in seen:
                    raise ConfigError(f"{said}: {kind} {part} is in two devices")
                seen.add((kind, part))
            names.append(name)
    return tuple(names)


def kind_of(name: str) -> str:
    """Return the kind of a device; empty: it has no name and none."""
    return name.partition(":")[0]


def cores_of(names: Iterable[str]) -> frozenset[int]:
    """Return the cores that these devices are, as far as they are cores."""
    found: set[int] = set()
    for name in names:
        kind, _, what = name.partition(":")
        if kind == CPU and what:
            found.update(_cores(what))
    return frozenset(found)


def confinement(
    names: Iterable[str], *, environ: Mapping[str, str], own: str | None = None
) -> Confinement:
    """Return what confines a process to the devices of these names; nothing for those without.

    A process that has devices of one kind sees no accelerator of the others that are known here:
    what it was given none of is another's.

    ``own``: the one of a worker that computes with others of its replica, whose accelerators it
    sees as well, as torch wants it; None: all are the process's.
    """
    named = [name for name in names if name]
    if own is not None and own.startswith((CPU, _PART)):  # of parts a process sees the first only
        named = [own]
    if not named:
        return Confinement()
    kinds = {kind_of(name) for name in named}
    mine = named if own is None else [own]
    variables = {DEVICE_NAMES: ",".join(mine)}
    for kind, those in VISIBLE.items():
        seen = ",".join(name.partition(":")[2] for name in named if kind_of(name) == kind)
        if kind in kinds or kinds & {CPU, *VISIBLE}:
            variables |= dict.fromkeys(those, seen or NONE.get(kind, ""))
    numbers = [name for name in named if _CUDA_NUMBER.fullmatch(name)]
    if numbers and (VISIBLE["cuda"][0] not in environ or hidden_one(numbers, environ)):
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts; else fastest first
    if "cuda" in kinds:
        variables[WORKSPACE[0]] = environ.get(*WORKSPACE)
    cores = cores_of(mine)
    if cores:
        variables |= {name: str(len(cores)) for name in THREADS if name not in environ}
    return Confinement(variables=variables, cores=cores or None)


def hidden_one(names: Iterable[str], environ: Mapping[str, str]) -> str:
    """Return the first of these devices that the surroundings hide, and where; empty: none."""
    for name in names:
        kind, _, what = name.partition(":")
        for variable in VISIBLE.get(kind, ()):
            if variable in environ and what not in entries_of(environ[variable]):
                return f"{name} is not in {variable}={environ[variable]}"
    return ""


def _group(group: str, said: str) -> Iterator[str]:
    kind, colon, rest = group.partition(":")
    if not colon or not _KIND.fullmatch(kind) or not rest:
        raise ConfigError(f"{said} is neither a number nor a list such as cuda:0-3 or cpu:0-3,4-7")
    for item in rest.split(","):
        found = _RANGE.fullmatch(item)
        if found and int(found[2]) < int(found[1]):
            raise ConfigError(f"{said}: {item} ends before it begins")
        if found and int(found[2]) - int(found[1]) >= MOST_NAMED:
            raise ConfigError(f"{said}: {item} is more than {MOST_NAMED}")
        if kind == CPU:
            if not found and not item.isdecimal():
                raise ConfigError(f"{said}: {item} is neither a core nor cores like 0-3")
            yield f"{kind}:{item}"
        elif found:
            yield from (f"{kind}:{each}" for each in range(int(found[1]), int(found[2]) + 1))
        elif _ITEM.fullmatch(item):
            yield f"{kind}:{item}"
        else:
            raise ConfigError(f"{said}: {item!r} is no name of a device")


def _cores(what: str) -> range:
    first, _, last = what.partition("-")
    return range(int(first), int(last or first) + 1)
