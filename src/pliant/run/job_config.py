"""One job, resolved: the value between the settings that people give and what hosts it.

Owns what there is to say about a job before it runs, and how that is written down: the log tells it
when the job starts, and who resumes it or starts it in the background makes it of that again.
Knows nothing of where a setting came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.placement import PlacementRule
from pliant.core.tenancy import PoolPlace
from pliant.core.values import Mode, TlsFiles
from pliant.machine.interfaces import loopback
from pliant.machine.named_modules import digest_of, file_of
from pliant.machine.registry import StateDirectory
from pliant.run.run_directory import holder_of
from pliant.spec.job import Limits, core_limits, document_of_limits
from pliant.spec.load import check
from pliant.spec.policy import ElasticPolicy, core_policy, fields_beside_bounds
from pliant.wire.messages import WORK_OPTIONS, Work, WorkOptions

SESSION_SHARE = 0.9
"""Of the limit for reaching ``steps()``: how long a script may take until it makes its session,
which comes a little before; so that the one who says what is wrong is first."""

MOST_COMMAND_BYTES = 96 << 10
"""Of a script and its arguments, as they travel.  With what else a worker is told they are one
record (``wire.launch``): a longer one would be cut, or never come there."""

_OPTIONS = TypeAdapter(WorkOptions)


CONFIG_MAP = "configmap:"
"""Begins the name of a register that lies in one."""


def is_config_map(register: object) -> bool:
    """Whether a register lies in a ConfigMap: its coordinator is in a pod, as are its agents."""
    return isinstance(register, str) and register.startswith(CONFIG_MAP)


def check_command(command: Sequence[str]) -> None:
    """Refuse a script and arguments of which no replica could be told.

    Raises:
        ConfigError: they are too long, or not all of them are text.
    """
    try:
        num_bytes = len(json.dumps(command, ensure_ascii=False, separators=(",", ":")).encode())
    except UnicodeEncodeError as error:
        word = next(one for one in command if not one.isprintable())
        raise ConfigError(
            f"{word!a:.60} is no text in UTF-8, as what a script is given must be; rename the file"
        ) from error
    if num_bytes > MOST_COMMAND_BYTES:
        raise ConfigError(
            f"the script and its arguments have {num_bytes} bytes, and a replica can be told of "
            f"{MOST_COMMAND_BYTES} at most; put them into a file that the script reads"
        )


def check_place(directory: Path) -> None:
    """Refuse a directory of which no replica could be told.

    Raises:
        ConfigError: its path is no text.
    """
    here = str(directory)
    if here.encode(errors="replace").decode() != here:
        raise ConfigError(
            f"{here!a} is no text in UTF-8, as the directories of a run must be; rename it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig(WorkOptions):
    """What to run, how large, and where; and the settings that agents and sessions read."""

    name: str
    argv: tuple[str, ...]
    """The script and its arguments."""

    settings: JobSettings
    out: Path
    """An existing directory; a run that it holds goes on."""

    environ: Mapping[str, str] = field(repr=False)
    """What workers inherit, and by which commands find the job."""

    port: int = 0
    """Port of the coordinator; 0: any that is free."""

    address: str = field(default_factory=loopback)
    """Where the coordinator listens, and no other address does."""

    host: str = ""
    """By which its agents on other hosts reach it, as its certificate must name it; empty: it
    serves this host only, in the clear."""

    token_file: Path | None = None
    """What agents prove themselves with; None: a file in the directory of the run."""

    register: str | None = None
    """Where the register lies; None: in the directory of the run."""

    init: Path | None = None
    pool: PoolPlace | None = None
    """None: every device of the machine is the job's."""

    device_kind: str | None = None
    """Of which kind its devices are, without a pool; None: accelerators, or cores where there are
    none."""

    tls: TlsFiles | None = None
    """Of all that goes between hosts; without a CA, of what goes to the coordinator alone."""

    tls_any_node: bool = False
    """The certificate of an agent need not name its node."""

    session_s: float | None = None
    """Longest time from the start of the script until it makes a session, in seconds."""

    price: float | None = None
    """Of a device for an hour; None: what the job costs is not told."""

    log_to: str | None = None
    """Trackers that get what the script logs, with commas between them."""

    notify: str | None = None
    """A URL that is told how the job ends, and what it suffers."""

    def __post_init__(self) -> None:
        settings = replace(self.settings, is_restarting=self.mode is Mode.RESTART)
        object.__setattr__(self, "settings", settings)  # wherever the two came from

    @property
    def is_pod(self) -> bool:
        """Whether the coordinator is in a pod: told to end, it hands over; the script is elsewhere;
        an end that was decided is none that anybody should start it again for."""
        return is_config_map(self.register)

    @property
    def state(self) -> StateDirectory:
        """Return where commands look for jobs and pools."""
        return StateDirectory.of(self.environ)

    def work(self) -> Work:
        """Return what agents are to run; a holder is chosen in the first life of the directory."""
        return Work(
            job=self.name,
            command=self.argv,
            cwd="" if self.is_pod else str(Path.cwd()),
            out=str(self.out.absolute()),
            init=self._init(),
            holder=holder_of(self.out, self.name),
            **self.options(),
            tls=self.tls if self.tls is not None and self.tls.is_whole else None,
            session_s=self.session_s or SESSION_SHARE * self.settings.start_s,
            graceful_s=self.settings.policy.graceful_shutdown_timeout_s,
            max_restarts=self.settings.restart_budget,
            digest="" if (script := file_of(self.argv, Path.cwd())) is None else digest_of(script),
        )

    def document(self) -> dict[str, Any]:
        """Return what ``of`` makes the same job of, in the same working directory."""
        policy = self.settings.policy
        return {
            "command": list(self.argv),
            "cwd": str(Path.cwd()),
            "init": self._init(),
            "policy": {
                name: getattr(policy, f"{name}_replicas") for name in ("min", "max", "start")
            },
            "elastic_policy": fields_beside_bounds(policy),
            "pool": None if self.pool is None else asdict(self.pool),
            "device_kind": self.device_kind,
            "max_restarts": self.settings.restart_budget,
            **self.options(),
            "log_rules": [asdict(one) for one in self.log_rules],
            "limits": document_of_limits(self.settings),
            "tls": None if self.tls is None else asdict(self.tls),
            "session_s": self.session_s,
            "placement": str(self.settings.placement),
            "register": self.register,
            "price": self.price,
            "notify": self.notify,
            "log_to": self.log_to,
        }

    @classmethod
    def of(
        cls, document: Mapping[str, Any], *, name: str, out: Path, environ: Mapping[str, str]
    ) -> Self:
        """Return the job that a document, or the record of its start, tells of; without weights."""
        sizes, place, tls = document["policy"], document.get("pool"), document.get("tls")
        fields = dict(document.get("elastic_policy") or {})
        bounds = {f"{bound}Replicas": sizes.get(bound) for bound in ("min", "max")}
        fields |= {name: size for name, size in bounds.items() if size is not None}
        policy = core_policy(check(ElasticPolicy, fields, source="the policy"), sizes.get("start"))
        budget = document.get("max_restarts")
        given = {} if budget is None else {"restart_budget": budget}
        placement = PlacementRule.of(document.get("placement", "free"))
        said = dict(document.get("limits") or {})
        limits = core_limits(check(Limits, said, source="the limits"))
        told = {name: document[name] for name in WORK_OPTIONS if name in document}
        return cls(
            name=name,
            argv=tuple(document["command"]),
            settings=JobSettings(policy=policy, placement=placement, **limits, **given),
            out=out,
            environ=environ,
            pool=PoolPlace(**place) if isinstance(place, dict) else None,
            device_kind=document.get("device_kind"),
            tls=TlsFiles(**tls) if isinstance(tls, dict) else None,
            session_s=document.get("session_s"),
            register=document.get("register"),
            price=document.get("price"),
            notify=document.get("notify"),
            log_to=document.get("log_to"),
            **_OPTIONS.validate_python(told).options(),
        )

    def _init(self) -> str | None:
        return None if self.init is None else str(self.init.absolute())
