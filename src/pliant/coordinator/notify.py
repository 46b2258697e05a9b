"""Tells a URL what becomes of a job: one JSON body when it ends, falls below its minimum, or cannot
save.

Owns which records are news, the body, and when to give up telling.  Nothing waits for it while the
job runs: bodies go out from a thread of their own.  Knows nothing of who listens there.

    record --> news? --> queue --> thread --> POST, again after 1, 5, 20 s
    the job has ended --> no more than CLOSE_S for all that is left
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from pliant.http.client import said_of
from pliant.observe.log import Record
from pliant.observe.status import Board

AGAIN_S = (1.0, 5.0, 20.0)
"""Pauses before another try, in seconds; then it is given up."""

TRY_S = 5.0
"""Longest wait for an answer, in seconds."""

CLOSE_S = 10.0
"""What the end of a job waits for the last bodies, in seconds."""

MOST_WAITING = 100

_log = logging.getLogger(__name__)


class Notifier:
    """Listens to the event log of one job."""

    def __init__(self, url: str, board: Callable[[], Board]) -> None:
        """``board``: of the job, which has taken in each record before this hears of it."""
        self._url = url
        self._where = urlsplit(url).hostname or url
        """What is said of it: the rest of such a URL is often a secret."""

        self._board = board
        self._was_holding = self._was_failing = False
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._is_closing = threading.Event()
        self._until_s = 0.0
        self._thread = threading.Thread(target=self._deliver, name="notify", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Take in a record; tell the URL if it is news."""
        board = self._board()
        is_holding, is_failing = board.living.is_holding, board.checkpoint_failure is not None
        if record["kind"] == "job_ended":
            self._tell("suspended" if board.state == "suspended" else self._ended(board), record)
        elif is_holding and not self._was_holding:
            self._tell("below_minimum", record, reason="fewer replicas are left than it needs")
        elif is_failing and not self._was_failing:
            self._tell("save_failed", record)
        self._was_holding, self._was_failing = is_holding, is_failing

    @staticmethod
    def _ended(board: Board) -> str:
        return "failed" if board.state in ("failed", "lost") else "ended"

    def _tell(self, event: str, record: Record, *, reason: str = "") -> None:
        board, reason = self._board(), str(record.get("reason") or reason)
        what = f"{event.replace('_', ' ')} after step {board.committed}"
        body = {
            "event": event,
            "job": board.job,
            "state": board.state,
            "at": record.get("at"),
            "reason": reason,
            "step": board.committed,
            "total_steps": board.total_steps,
            "num_replicas": len(board.living.members),
            "target_replicas": board.target_replicas,
            "min_replicas": board.min_replicas,
            "exit_code": board.exit_code,
            "checkpoint": board.checkpoint,
            "out": board.about.get("out"),
            "host": socket.gethostname(),
            "text": f"{board.job}: {what}: {reason}",
        }
        try:
            self._waiting.put_nowait(body)
        except queue.Full:
            _log.warning("%s takes no notifications: one of %s is dropped", self._where, event)

    def close(self) -> None:
        """Wait until all is told or given up, for ``CLOSE_S`` at most."""
        self._until_s = time.monotonic() + CLOSE_S
        self._is_closing.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            _log.warning("%s was not told of everything", self._where)
            return
        self._thread.join(CLOSE_S)

    def _deliver(self) -> None:
        with httpx.Client(timeout=TRY_S) as http:
            while (body := self._waiting.get()) is not None:
                self._deliver_one(http, body)

    def _deliver_one(self, http: httpx.Client, body: dict[str, Any]) -> None:
        for wait_s in (*AGAIN_S, None):
            try:
                answer = http.post(self._url, json=body)
                if answer.is_success:
                    return
                failure = f"HTTP status {answer.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = said_of(error)
            if wait_s is None or (self._is_closing.is_set() and time.monotonic() > self._until_s):
                break
            self._is_closing.wait(wait_s)
            if self._is_closing.is_set():
                threading.Event().wait(min(wait_s, 1.0))  # a last word is tried again soon
        _log.warning("%s was not told that the job %s: %s", self._where, body["event"], failure)


@contextmanager
def notifying(url: str, board: Callable[[], Board]) -> Iterator[Notifier]:
    """Tell a URL meanwhile."""
    notifier = Notifier(url, board)
    try:
        yield notifier
    finally:
        notifier.close()
