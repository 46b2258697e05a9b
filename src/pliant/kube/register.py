"""A job's register in one ConfigMap, which the operator has made.

Owns that of two who replace it at one moment at most one does: each write names the
``resourceVersion`` that was read (R1), and none is sent without.  Owns the watch by which another
coordinator is noticed, so that nobody asks every two seconds.  Knows nothing of what the bytes
mean.  May ``get``, ``update`` and ``watch`` that one object, and needs nothing else.

    read --> GET          exchange --> PUT with resourceVersion --> 409: is it another's? --> GET
    watch (a thread) --> "somebody has changed it" --> may_have_changed --> the next look is a GET
                     --> not reached --> may_have_changed raises: nothing is known
"""

from __future__ import annotations

import errno
import threading
from typing import Any

from pliant.core.errors import ConfigError
from pliant.kube.client import CONFIG_MAPS, ApiError, Call, Object, SyncApi, read, replace, watching

REGISTER = "register"
"""The key of the register."""

OUTCOME = "outcome"
"""The key of how the job has ended, for a coordinator that is started once more."""

ANSWER_S = 10.0
"""Longest wait for one answer, in seconds."""

TRIES = 5
"""Writes after each of which something else of the object was changed, such as a label."""

AGAIN_S = 2.0
"""Before a watch that has ended is begun again, in seconds."""


class ConfigMapPlace:
    """The register of one job; every method may block, and raises OSError."""

    write_again_s = (0.1, 0.3, 1.0, 3.0) + 10_000 * (5.0,)
    """Half a day: training goes on meanwhile, and only a loss waits."""

    def __init__(self, api: SyncApi, name: str) -> None:
        self._api = api
        self._name = name
        self._found: Object | None = None
        self._is_changed = True
        self._fault: str | None = "it was not watched yet"
        self._is_closed = threading.Event()

    def __str__(self) -> str:
        return f"ConfigMap {self._api.cluster.namespace}/{self._name}"

    def uid(self) -> str:
        """Return by which the object is told from another of its name.

        Raises:
            ConfigError: there is none.
            OSError: the API server does not say.
        """
        found = self._get()
        if found is None:
            raise ConfigError(
                f"--register configmap:{self._name}: there is no {self}; the operator makes it "
                "together with the coordinator"
            )
        return str(found["metadata"]["uid"])

    def read(self) -> bytes | None:
        """Return what is recorded; None: nothing is, or the object is gone."""
        return _value(self._get(), REGISTER)

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Replace the register if it is as expected."""
        return self._put(REGISTER, data, expected)

    def read_outcome(self) -> bytes | None:
        """Return how the job has ended; None: nobody has written that."""
        return _value(self._get(), OUTCOME)

    def write_outcome(self, data: bytes) -> None:
        """Write how the job has ended, beside the register."""
        self._put(OUTCOME, data, _value(self._get(), OUTCOME))

    def may_have_changed(self) -> bool:
        """Whether somebody may have written since this one has read or written.

        Raises:
            OSError: that is not known, as the API server is not reached.
        """
        if self._fault is not None:
            raise OSError(errno.EIO, self._fault, str(self))
        return self._is_changed

    def watch(self) -> None:
        """Watch from now on, on a thread of its own that no exit waits for."""
        threading.Thread(target=self._watch, name="register", daemon=True).start()

    def close(self) -> None:
        """Watch no longer."""
        self._is_closed.set()
        self._api.close()

    def _watch(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._follow()
            except (ApiError, OSError, RuntimeError) as error:  # the last: closed meanwhile
                self._fault = str(error)
                self._is_closed.wait(AGAIN_S)

    def _follow(self) -> None:
        if (found := self._get(is_seen=False)) is None:
            raise OSError(errno.ENOENT, "it is gone", str(self))
        self._note(found)
        self._fault = None
        call = watching(
            CONFIG_MAPS,
            self._api.cluster.namespace,
            version=found["metadata"]["resourceVersion"],
            fields=f"metadata.name={self._name}",
        )
        for event in self._api.events(call):
            if event["type"] != "BOOKMARK":
                self._note(event["object"])

    def _note(self, seen: Object) -> None:
        if self._found is None or _version(seen) != _version(self._found):
            self._is_changed = True

    def _put(self, key: str, data: bytes, expected: bytes | None) -> bool:
        for number in range(TRIES):
            body = self._found if number == 0 else self._get()
            if body is None or _value(body, key) != expected:
                if number:
                    return False
                continue
            values = {**(body.get("data") or {}), key: data.decode()}
            try:
                self._found = self._ask(replace({**body, "data": values}))
            except ApiError as error:
                if not error.is_conflict:
                    raise self._error(error) from error
            else:
                return True
        return False

    def _get(self, *, is_seen: bool = True) -> Object | None:
        call = read(CONFIG_MAPS, self._name, self._api.cluster.namespace)
        if is_seen:
            self._is_changed = False  # what is changed from now on is told by the watch
        try:
            found: Object = self._ask(call)
        except ApiError as error:
            self._is_changed = True
            if error.is_gone:
                return None
            raise self._error(error) from error
        if is_seen:
            self._found = found
        return found

    def _ask(self, call: Call) -> Any:
        return self._api.ask(call, timeout_s=ANSWER_S)

    def _error(self, error: ApiError) -> OSError:
        return OSError(errno.EIO, error.message, str(self))


def _version(body: Object) -> str:
    return str(body["metadata"]["resourceVersion"])


def _value(body: Object | None, key: str) -> bytes | None:
    text = ((body or {}).get("data") or {}).get(key)
    return text.encode() if text else None
