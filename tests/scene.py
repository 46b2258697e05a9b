"""Tests that are coroutines: a scene is played in a world, in an event loop that ends with it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

Test = Callable[..., Awaitable[None]]


def scene(*values: Any, by: str = "play", **options: Any) -> Callable[[Test], Callable[..., None]]:
    """Have the fixture ``by`` play a test, with these options.

    What is played hands its world to the test; keyword-only parameters of the test are fixtures.
    """

    def decorate(test: Test) -> Callable[..., None]:
        def played(**fixtures: Any) -> None:
            play = fixtures.pop(by)
            play(partial(test, **fixtures), *values, **options)

        return _called_as(test, played, by)

    return decorate


def in_a_loop(test: Test) -> Callable[..., None]:
    """Run a test in an event loop; its keyword-only parameters are fixtures."""

    async def run(fixtures: dict[str, Any]) -> None:
        await test(**fixtures)

    return _called_as(test, lambda **fixtures: asyncio.run(run(fixtures)))


def _called_as(test: Test, call: Callable[..., None], *more: str) -> Callable[..., None]:
    """Return a function that pytest takes for the test, with the fixtures that it needs."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    known = inspect.signature(test).parameters.values()
    fixtures = {one.name for one in known if one.kind is keyword} | set(more)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(call, name, getattr(test, name))
    parameters = [inspect.Parameter(name, keyword) for name in sorted(fixtures)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__dict__.update(getattr(test, "__dict__", {}))
    return call
