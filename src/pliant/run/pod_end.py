"""How a job ends whose coordinator is in a pod, and who is told.

Owns that an end which was decided is told to whoever started the pod, in one line of JSON, and told
again by a coordinator that is started once more: directories go with pods, the register does not.
Decides nothing.

    register: an end that is final --> the same line again, and nothing is started
              stopped, suspended   --> whoever starts it again wants it to go on
              else                 --> the job goes on, or begins
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter

from pliant.coordinator.register import StoredRegister
from pliant.core.errors import EXIT_STOPPED, ConfigError
from pliant.core.text import counted
from pliant.machine import run_files
from pliant.observe.audit import audit_run
from pliant.observe.ledgers import ledgers_in
from pliant.observe.status import ENDED_AS, Board
from pliant.run.job_config import JobConfig
from pliant.run.register_location import ConfigMapLocation, RegisterLocation

TERMINATION_LOG = "/dev/termination-log"
"""Where a kubelet looks for the last words of a container."""

MOST_LETTERS = 1500
"""Of a reason, and of an audit: a kubelet takes 4,096 bytes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The line; its names are those that people of Kubernetes write."""

    exit_code: int
    reason: str
    state: str
    step: int
    digest: str | None = None
    """Of what the last step came to; None: the ledger that has it is not here."""

    audit: str | None = None
    """Whether each sample counted exactly once, or the first thing wrong; None: nobody looked."""

    def line(self) -> bytes:
        """Return it as JSON."""
        said = {
            "exitCode": self.exit_code,
            "reason": self.reason[:MOST_LETTERS],
            "state": self.state,
            "step": self.step,
            "digest": self.digest,
            "audit": None if self.audit is None else self.audit[:MOST_LETTERS],
        }
        return json.dumps(said).encode()


@dataclass(slots=True, kw_only=True)
class PodEnd:
    """Of one life of a coordinator in a pod."""

    location: ConfigMapLocation
    log: Path
    out: Path
    found: Ending | None = None
    """The job has ended, in a life before."""

    is_asked: bool = False
    """It was stopped or suspended, and is to go on."""

    @classmethod
    def of(cls, config: JobConfig, location: RegisterLocation) -> Self | None:
        """Read what the register says; None: the coordinator is in no pod."""
        if not isinstance(location, ConfigMapLocation):
            return None
        log = Path(config.environ.get("PLIANT_TERMINATION_LOG", TERMINATION_LOG))
        register = StoredRegister(location.register).read()
        outcome = None if register is None else register.outcome
        own = cls(location=location, log=log, out=config.out)
        if register is None or outcome is None or not outcome.is_final:
            return own
        if outcome.exit_code == EXIT_STOPPED:
            own.is_asked = True
            return own
        own.found = Ending(
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            state=ENDED_AS.get(outcome.exit_code, "failed"),
            step=0 if register.last_step is None else register.last_step[1],
        )
        said = _parsed(location.place.read_outcome())
        if said is not None and said.exit_code == outcome.exit_code:
            own.found = said
        return own

    def write(self, board: Board) -> None:
        """Tell how the job has ended now, and keep it beside the register."""
        ending = Ending(
            exit_code=1 if board.exit_code is None else board.exit_code,
            reason=board.reason or "",
            state=board.state,
            step=board.committed,
            digest=_digest_of(self.out, board.committed - 1),
        )
        self._keep(ending)  # an audit takes its time
        ending = replace(ending, audit=_audit_of(self.out))
        self._keep(ending)
        self.tell(ending)

    def _keep(self, ending: Ending) -> None:
        try:
            self.location.place.write_outcome(ending.line())
        except OSError as error:  # the register has what counts
            _log.warning("how the job ended could not be kept: %s", error)

    def tell(self, ending: Ending) -> None:
        """Write the line where a kubelet looks."""
        try:
            self.log.write_bytes(ending.line())
        except OSError as error:
            _log.warning("%s could not be written: %s", self.log, error)


def _digest_of(out: Path, step: int) -> str | None:
    """Return the digest of a step in its newest history, as its ledgers here have it."""
    commits = (one for ledger in ledgers_in(out / run_files.LEDGER) for one in ledger.commits())
    found = [one for one in commits if one.get("step") == step]
    newest = max(found, key=lambda one: one.get("lineage") or 0, default={})
    return str(newest["digest"]) if newest.get("digest") else None


def _audit_of(out: Path) -> str | None:
    """Return what an audit of the files here comes to, in a sentence."""
    try:
        found = audit_run(out)
    except (ConfigError, OSError) as error:
        return f"not possible: {error}"
    if found.exactly_once:
        return f"{found.committed_steps} steps: each sample counted exactly once"
    wrong = [*found.problems, *found.uncovered]
    return f"{wrong[0]} (of {counted(len(wrong), 'finding')}; see pliant audit)"


def _parsed(line: bytes | None) -> Ending | None:
    """Return what a line says; None: nothing that is one."""
    if line is None:
        return None
    try:
        said = json.loads(line)
        return TypeAdapter(Ending).validate_python({"exit_code": said.pop("exitCode"), **said})
    except (ValueError, KeyError, AttributeError):
        return None
