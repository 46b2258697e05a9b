"""Where a setting of a job comes from: argument > environment > file > default.

Owns that order, and how a value is read in each place.  Knows nothing of what settings do, nor
which there are (``settings``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from pliant.cli.arguments import changes_of
from pliant.cli.settings import BOUNDS, SETTINGS, Setting
from pliant.core.errors import ConfigError
from pliant.spec.job import ElasticJob
from pliant.spec.limits import Limits
from pliant.spec.policy import ElasticPolicy, merged

SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A value and where it came from."""

    setting: Setting
    value: Any
    source: str
    """The option, the variable, ``job file`` or ``default``."""

    @property
    def given(self) -> str:
        """Return it as it was given: ``--max 2``, ``PLIANT_MAX=2``, ``--max 2 (job file)``."""
        if self.source == self.setting.variable:
            return f"{self.source}={self.value}"
        where = "" if self.source == self.setting.flag else f" ({self.source})"
        return f"{self.setting.flag} {self.value}{where}"


Settings = Mapping[str, Resolved]


# Click could resolve argument > environment > default_map > default, and say which it was, but:
# its sentence for a variable that is no number names the option ("Invalid value for '--min' (env
# var: 'PLIANT_MIN')") where ours names the variable alone; it takes the fields of the policy all
# from one place; and a variable or a job file gives the coordinator settings for which it has no
# option.  What it does would be less than what would have to be done around it.
def resolve(
    arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> dict[str, Resolved]:
    """Take each setting, and each field of the policy, from the first place that gives it.

    Raises:
        ConfigError: an environment variable cannot be read.
    """
    return {item.name: _resolve(item, arguments, environ, job) for item in SETTINGS}


def _resolve(
    item: Setting, arguments: Mapping[str, Any], environ: Mapping[str, str], job: ElasticJob | None
) -> Resolved:
    places: Mapping[str, Callable[[], Any]] = {
        item.flag: lambda: arguments.get(item.name),
        item.variable: lambda: _in_environment(item, environ),
        "job file": lambda: None if job is None else _in_file(item, job),
    }
    if item.kind is dict:
        return _merged(item, places)
    for source, look in places.items():  # a variable that does not count is not read
        if (value := look()) is not None:
            return Resolved(setting=item, value=value, source=source)
    return Resolved(setting=item, value=item.default, source="default")


def _merged(item: Setting, places: Mapping[str, Callable[[], Any]]) -> Resolved:
    fields: dict[str, Any] = {}
    origin = "default"
    for source, look in reversed(list(places.items())):
        if found := look():
            fields, origin = merged(fields, found), source
    return Resolved(setting=item, value=fields, source=origin)


def _in_environment(item: Setting, environ: Mapping[str, str]) -> Any:
    text = environ.get(item.variable)
    if not text:
        return None
    try:
        if item.kind is bool:
            return SWITCH[text.lower()]
        return changes_of(text.split()) if item.kind is dict else item.kind(text)
    except ConfigError as error:
        raise ConfigError(f"{item.variable}: {error}") from None
    except (KeyError, ValueError):
        what = "1 or 0" if item.kind is bool else "a whole number"
        raise ConfigError(f"{item.variable}={text} must be {what}") from None


def _in_file(item: Setting, job: ElasticJob) -> Any:
    if not item.file_field:
        return None
    value: Any = job
    for part in item.file_field.split("."):
        value = getattr(value, to_snake(part), None)
    if isinstance(value, ElasticPolicy | Limits):
        document = value.model_dump(by_alias=True, exclude_unset=True)
        return {name: inner for name, inner in document.items() if name not in BOUNDS}
    return value
