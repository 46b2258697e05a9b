"""What training scripts for the elastic agent of HyperPod import, by pliant's own events.

Owns that one function.  Such a script leaves its loop and exits with code 0 once it answers True.
"""

from __future__ import annotations

import logging
import os

from pliant.restart.event import elastic_event

COORDINATION = "HYPERPOD_SIGNAL_COORDINATION"

_log = logging.getLogger(__name__)
_has_said = False


def elastic_event_detected() -> bool:
    """Return whether all processes are to save and exit now, at the same call in each.

    False unless ``HYPERPOD_SIGNAL_COORDINATION=distributed`` is in the environment.
    """
    global _has_said
    if os.environ.get(COORDINATION) == "distributed":
        return elastic_event() is not None
    if not _has_said:
        _has_said = True
        _log.warning(
            "elastic_event_detected() answers False, as %s is not 'distributed'", COORDINATION
        )
    return False
