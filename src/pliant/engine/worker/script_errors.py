"""Script errors: exceptions whose cause is known better than their text says it.

Owns which these are (a variable of torchrun that is missing, a device that pliant does not train
on, arguments that a parser refused) and the sentence for each, and how any other one is called in
a line.  Must not know how a worker ends.
"""

from __future__ import annotations

import argparse
import linecache
import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from pliant.engine import script_files
from pliant.engine.worker.other_scripts import WAYS_IN

TORCHRUN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)

_ASKED = re.compile(rf"(?:environ|getenv)\b.*?['\"]({'|'.join(TORCHRUN_VARIABLES)})['\"]")
_RENDEZVOUS = re.compile(r"environment variable (\w+) expected, but not set")
_ACCELERATOR = re.compile(r"cuda|nvidia|\bhip\b|\bxpu\b|\bmps\b|\bhpu\b", re.IGNORECASE)
_ENVIRONMENT = (("<frozen os>", "__getitem__"), (os.__file__, "__getitem__"))
_TOO_MANY_STEPS = re.compile(
    r"Tried to step \d+ times. The specified number of total steps is (\d+)"
)
_ONE_SAMPLE = "Expected more than 1 value per channel when training"
_NONDETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")
_MAKERS = frozenset({(os.__file__, "makedirs"), ("<frozen os>", "makedirs")})
_CHOICE = re.compile(r"cuda|\bxpu\b|\bmps\b|\bhpu\b|device", re.IGNORECASE)


def explained(error: BaseException, environ: Mapping[str, str]) -> str | None:
    """Return the sentence for an exception that a script let out; None: its traceback says it."""
    try:
        said = str(error)
    except Exception:  # of the script's own class, whose fault is one of its own
        return None
    variable = _missing_variable(error, said, environ)
    if variable is not None:
        return f"the script asks for {variable}, which torchrun sets and pliant does not. {WAYS_IN}"
    if (sentence := nondeterministic(error)) is not None:
        return sentence
    if _wants_accelerator(error, said):
        first_line = said.strip().partition("\n")[0]
        return (
            f"the script asks for an accelerator, and torch can use none on this host: write "
            f"device = pliant.device(), and .to(device) in place of .cuda(); torch says: "
            f"{first_line}"
        )
    return _known(error, said)


def nondeterministic(error: BaseException) -> str | None:
    """Return the sentence for an operation without equal bits, if its session refused those."""
    found = _NONDETERMINISTIC.search(str(error)) if isinstance(error, RuntimeError) else None
    torch: Any = sys.modules.get("torch")
    if found is None or torch is None or torch.are_deterministic_algorithms_enabled():
        return None  # behind its session only the script's own settings are left
    return (
        f"{found[1]} gives other bits from one time to the next on this device, which "
        'reduction="exact" does not allow; use another operation, or Session(reduction="fast")'
    )


def _known(error: BaseException, said: str) -> str | None:
    """Return the sentence for a mistake that every replica would make again."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    inner = {(code.co_filename, code.co_name) for code in frames}
    if isinstance(error, ValueError) and (found := _TOO_MANY_STEPS.search(said)):
        return (
            f"a scheduler was made for {found[1]} steps and the run has more; give OneCycleLR "
            "total_steps= as many as session.steps() makes: steps_per_epoch * epochs"
        )
    if isinstance(error, ValueError) and said.startswith(_ONE_SAMPLE):
        return (
            "BatchNorm cannot train on one sample, and the last micro-batch of an epoch has one; "
            "leave it out with drop_last=True, or take another micro_batch_size"
        )
    if isinstance(error, FileExistsError) and (_makes_directory(error) or inner & _MAKERS):
        return (
            f"{error.filename} is there already, as each replica runs the top of the script; write "
            "exist_ok=True where it is made"
        )
    return None


def _makes_directory(error: BaseException) -> bool:
    """Whether the script's own line calls os.mkdir, which leaves no frame."""
    place = script_files.place_of_error(error.__traceback__)
    return place is not None and "mkdir(" in linecache.getline(*place)


def in_one_line(error: BaseException) -> str:
    """Return an exception's type and all that it says: the last line alone may be a column's name.

    Of a mistake of syntax it leaves out the code, which stands behind two blanks.
    """
    lines = "".join(traceback.format_exception_only(error)).splitlines()
    said = [one for one in lines if not (isinstance(error, SyntaxError) and one.startswith("  "))]
    return " ".join(" ".join(said).split())


def last_words(stop: SystemExit) -> str:
    """Return what a script said when it ended itself; empty: nothing that is known."""
    if isinstance(stop.code, str):
        return stop.code
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        code = frame.f_code
        if code.co_filename == argparse.__file__ and code.co_name == "error":
            return str(frame.f_locals.get("message", ""))
    show = getattr(stop.__context__, "format_message", None)  # of click and typer
    return str(show()) if callable(show) else ""


def is_help(stop: SystemExit) -> bool:
    """Whether a parser of arguments ended the script, having shown its help or its version."""
    return any(
        frame.f_code.co_filename == argparse.__file__ and frame.f_code.co_name == "exit"
        for frame, _ in traceback.walk_tb(stop.__traceback__)
    )


def _missing_variable(error: BaseException, said: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable of torchrun's that was asked for in vain."""
    name: str | None = None
    found = _RENDEZVOUS.search(said)
    if isinstance(error, ValueError) and found is not None:
        name = found[1]
    elif isinstance(error, KeyError):
        frames = list(traceback.walk_tb(error.__traceback__))
        inner = frames[-1][0].f_code if frames else None
        if inner and (inner.co_filename, inner.co_name) in _ENVIRONMENT:
            name = next((one for one in TORCHRUN_VARIABLES if error.args == (one,)), None)
    elif isinstance(error, TypeError):  # int(os.environ.get("RANK"))
        place = script_files.place_of_error(error.__traceback__)
        asked = _ASKED.search(linecache.getline(*place)) if place is not None else None
        name = None if asked is None else asked[1]
    return name if name is not None and name not in environ else None


def _wants_accelerator(error: BaseException, said: str) -> bool:
    """Whether a script failed for want of a device: where there is one, torch's words do."""
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.accelerator.is_available():
        return False
    if not isinstance(error, RuntimeError | AssertionError | NotImplementedError | ValueError):
        return False
    if not _ACCELERATOR.search(said) or "map_location" in said or "out of memory" in said:
        return False
    place = script_files.place_of_error(error.__traceback__)
    line = linecache.getline(*place) if place is not None else ""
    is_chosen = _CHOICE.search(line) is not None or "same device" in said
    is_first_use = any(
        frame.f_code.co_name == "_lazy_init"
        and frame.f_globals.get("__name__") in ("torch.cuda", "torch.xpu", "torch.mtia")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return is_chosen or is_first_use
