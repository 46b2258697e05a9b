"""Signals that every process of a job gets at once, as of ``scancel`` or a service manager.

The run has them stop the job, with a checkpoint; its fork server, workers and loader processes
must live until then, and leave such signals to it.  Owns only that.  A script's own handler works,
and what a script starts gets the signals as ever.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any

from pliant.machine.event_loop import END_SIGNALS


def leave_to_run() -> None:
    """Have this process do nothing on them; in its main thread.

    By a handler, as a program that is started from here would inherit that a signal is ignored.
    """
    for number in END_SIGNALS:
        signal.signal(number, _leave)


def tell_children_apart() -> None:
    """Have loader processes leave the signals, too, and no other process that this one forks."""
    os.register_at_fork(after_in_child=_take_back)
    torch_signals: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    if torch_signals is None:
        return
    set_torch_handlers = torch_signals._set_worker_signal_handlers  # noqa: SLF001  # no other way in

    @functools.wraps(set_torch_handlers)  # else the script's modules look as if they knew pliant
    def set_handlers(*args: Any) -> None:
        set_torch_handlers(*args)  # of SIGTERM as well
        leave_to_run()

    setattr(torch_signals, set_torch_handlers.__name__, set_handlers)


def _leave(_number: int, _frame: object) -> None:
    """Do nothing."""


def _take_back() -> None:
    for number in END_SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_DFL)
