"""Seeded faults of rules outside the core: what shells must do for the core to be right."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

_COORDINATOR = partial(Fault, room="coordinator", suite=("tests/coordinator",))
_REGISTER = partial(_COORDINATOR, path="register.py")
_TRANSFER = partial(
    Fault,
    rule="5.5",
    room="engine/state",
    path="transfer.py",
    suite=("tests/engine/state/test_transfer.py",),
    old="stamp.generation, stamp.step, stamp.lineage, manifest, chunk)",
)
_LEASE = partial(Fault, rule="R20", room="checkpoint/lease", suite=("tests/checkpoint/lease",))

SHELL_FAULTS = [
    _REGISTER(
        rule="R1",
        what="the file of the register is not locked",
        old="        with self._spare.lent(), held(self._lock):\n"
        "            self._require(expected)\n            self._replace",
        new="        with self._spare.lent():\n            self._require(expected)\n"
        "            self._replace",
    ),
    _REGISTER(
        rule="R2",
        what="whatever is read after a write that failed is taken for its own",
        old="                if await asyncio.to_thread(self._file.read) == register:\n"
        "                    expected = register",
        new="                expected = await asyncio.to_thread(self._file.read)\n"
        "                if expected == register:\n"
        "                    pass",
    ),
    _COORDINATOR(
        rule="R20",
        path="driver.py",
        what="the end of a job is told by a coordinator that was overtaken",
        old="isinstance(command, Publish | EndJob):  # R20",
        new="isinstance(command, Publish):  # R20",
    ),
    Fault(
        rule="R3",
        room="agent",
        path="uplink.py",
        suite=("tests/agent/test_agent.py",),
        what="an agent obeys an older coordinator",
        old="        if received.incarnation < self.incarnation:",
        new="        if received.incarnation < 0:",
    ),
    _TRANSFER(
        what="a chunk of another history has the same digest",
        new="stamp.generation, stamp.step, 0, manifest, chunk)",
    ),
    _TRANSFER(
        what="another chunk of the same bytes has the same digest",
        new="stamp.generation, stamp.step, stamp.lineage, manifest, 0)",
    ),
    Fault(
        rule="Pool",
        room="pool",
        path="recovery.py",
        suite=("tests/pool/test_recovery.py",),
        what="a process that was given the id of another inherits its devices",
        old="(known.pid, known.started) != (report.pid, started)",
        new="known.pid != report.pid",
    ),
    _LEASE(
        path="rules.py",
        what="a lease runs out when that of whoever waits for it would",
        old="    if still_for_s >= found.ttl_s:",
        new="    if still_for_s >= me.ttl_s:",
    ),
    _LEASE(
        path="holder.py",
        what="a lease that was removed goes on",
        old="    return found if found is not None and found.holder == held.holder else None",
        new="    return held if found is None or found.holder == held.holder else None",
    ),
    _LEASE(
        path="holder.py",
        what="a lease that was removed is still held",
        old="    return found is not None and found.holder == holder",
        new="    return found is None or found.holder == holder",
    ),
]
