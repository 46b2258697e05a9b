"""Reading a file of ours: every mistake becomes one sentence that names the line and the cure.

Owns the translation from YAML text and pydantic's errors to ``ConfigError``.  Knows nothing of
what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from pliant.core.errors import ConfigError

Path = tuple[str | int, ...]

KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
}
"""What a value must be, by the kind of pydantic's error."""

M = TypeVar("M", bound=BaseModel)


def parse(
    model: type[M],
    text: str,
    *,
    source: str,
    change: Callable[[dict[str, Any]], object] = lambda _: None,
) -> M:
    """Parse a file of one kind; ``change`` changes what is in it before it is checked.

    Raises:
        ConfigError: one sentence; names ``source``, the line and the nearest valid field.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
        places = [] if root is None else list(_lines(root, ()))
    except yaml.YAMLError as error:
        raise no_yaml(error, source) from None
    except (ValueError, RecursionError) as error:  # an impossible date; an anchor inside itself
        raise ConfigError(f"{source} is not valid YAML: {error}") from None
    lines: dict[Path, int] = {}
    for path, line in places:
        if path in lines:  # YAML would silently take the last one
            raise ConfigError(f"{source} line {line}: the field {path[-1]} is given twice")
        lines[path] = line
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must be a mapping that starts with apiVersion and kind")
    change(values)
    return check(model, values, source=source, lines=lines)


def no_yaml(error: yaml.YAMLError, source: str) -> ConfigError:
    """Return the sentence for text that is no YAML."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    place = "" if mark is None else f" line {mark.line + 1}"
    why = f": {problem}" if problem else ""
    return ConfigError(f"{source}{place} is not valid YAML{why}")


def place_of(text: str, *path: str, source: str) -> str:
    """Name a field of a file that has been parsed: ``pool.yaml line 5: spec.devices``."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None if root is None else dict(_lines(root, ())).get(path)
    return f"{source if line is None else f'{source} line {line}'}: {'.'.join(path)}"


def check(model: type[M], values: Any, *, source: str, lines: Mapping[Path, int] = {}) -> M:
    """Check what is data already; ``lines`` says where each field stands in its file.

    Raises:
        ConfigError: one sentence, as for ``parse``.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:  # an unknown field explains a missing one
        first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    path: Path = tuple(first["loc"])
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    where = source if line is None else f"{source} line {line}"
    raise ConfigError(" ".join(f"{where}: {_what(model, first, path)}".split()))


def _what(model: type[BaseModel], error: Any, path: Path) -> str:
    indexed = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    name, given = "".join(indexed).lstrip("."), error.get("input")  # spec.command[1]
    match error["type"]:
        case "impossible":
            return str(error["msg"])
        case "extra_forbidden":
            valid = _field_names(path[:-1], model)
            nearest = _nearest(str(path[-1]), valid)
            hint = f"did you mean {nearest}?" if nearest else f"valid are {', '.join(valid)}"
            return f"unknown field {name}; {hint}"
        case "missing":
            return f"{name} is missing"
        case "string_type":
            return f'{name} must be text; put it in quotes: "{given}"'
        case "greater_than_equal" | "less_than_equal":
            bound, limit = next(iter(error["ctx"].items()))
            least_or_most = "at least" if bound == "ge" else "at most"
            return f"{name} must be {least_or_most} {limit:g}, not {given!r}"
        case "greater_than":
            return f"{name} must be more than {error['ctx']['gt']:g}, not {given!r}"
        case "literal_error":
            return f"{name} must be {error['ctx']['expected'].replace(chr(39), '')}, not {given!r}"
        case "too_short":
            return f"{name} must not be empty"
        case kind if kind in KINDS:
            return f"{name} must be {KINDS[kind]}, not {given!r}"
        case _:
            return f"{name}: {error['msg']}"


def _nearest(name: str, valid: list[str]) -> str | None:
    """Return the valid field that ``name`` was meant to be, whatever its case; None if none is."""
    by_lower = {field.lower(): field for field in valid}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[near[0]] if near else None


def _field_names(path: Path, model: type[BaseModel]) -> list[str]:
    """Return the valid fields at a path of a kind of file, as they are written in YAML."""
    for part in path:
        if isinstance(part, int):
            continue  # of the entries of a list
        fields = {item.alias: item.annotation for item in model.model_fields.values()}
        inner = _model_in(fields.get(str(part)))
        if inner is None:
            return []
        model = inner
    return [str(item.alias) for item in model.model_fields.values()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, type(int | None), tuple, list):
        return next(filter(None, map(_model_in, get_args(annotation))), None)
    return None


def _lines(node: yaml.Node, path: Path) -> Iterator[tuple[Path, int]]:
    """Yield the line (from 1) of every field and list entry."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value.start_mark.line + 1
            yield from _lines(value, (*path, index))
