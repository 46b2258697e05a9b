"""Members of a generation meet, in any order and through any trouble; nobody else gets in."""

from __future__ import annotations

import contextlib
import hmac
import os
import random
import resource
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import psutil
import pytest
from tests.engine.comm.circle import BOUND_S, Running, tls_contexts, wait_until
from tests.engine.comm.proxy import FINE, Fate, Proxy, Trouble

from pliant.engine.comm import mesh as mesh_module
from pliant.engine.comm.handshake import Handshake, connecting, word_of
from pliant.engine.comm.mesh import Mesh, Peer, Port, parse_endpoint
from pliant.machine.tls import TlsContexts

pytestmark = pytest.mark.timeout(60)

SECRET = bytes(range(32))


class GivenUpError(Exception):
    """What the one who waits was told."""


class Meeting:
    """One member's part in one meeting."""

    def __init__(
        self,
        ports: Sequence[Port],
        rank: int,
        *,
        endpoints: Sequence[str] | None = None,
        generation: int = 1,
        secret: bytes = SECRET,
        greeting: bytes | None = None,
        admits: Callable[[int, bytes], bool] = lambda peer, greeting: True,
        tls: TlsContexts | None = None,
        deadline_s: float = BOUND_S,
    ) -> None:
        self.rank = rank
        self.num_checks = 0
        self._given_up = False
        self._deadline_at = time.monotonic() + deadline_s
        own = b"greeting of %d" % rank if greeting is None else greeting
        self.mesh = Mesh(
            generation=generation,
            secret=secret,
            rank=rank,
            endpoints=[port.endpoint for port in ports] if endpoints is None else endpoints,
            port=ports[rank],
            greeting=own,
            greet=lambda theirs: own + b" for " + theirs,
            admits=admits,
            tls=tls,
        )
        self.running: Running | None = None

    def start(self) -> Meeting:
        self.running = Running(lambda: self.mesh.connect(self._check), f"member {self.rank}")
        return self

    def give_up(self) -> None:
        self._given_up = True
        self.mesh.wake()

    def peers(self) -> dict[int, Peer]:
        assert self.running is not None
        found: dict[int, Peer] = self.running.result()
        return found

    def has_ended(self) -> bool:
        assert self.running is not None
        return self.running.ends_within(0)

    def _check(self) -> None:
        self.num_checks += 1
        if self._given_up or time.monotonic() > self._deadline_at:
            raise GivenUpError


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    found = [Port() for _ in range(5)]
    yield found
    for port in found:
        port.close()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    process = psutil.Process()
    before = process.num_fds()
    yield
    wait_until(lambda: process.num_fds() <= before + 1, "a descriptor is left")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_module, "STRANGER_S", 0.3)
    monkeypatch.setattr(mesh_module, "HANDSHAKE_S", 0.3)


def check_met(meetings: Sequence[Meeting]) -> None:
    """Make sure that everybody is connected to everybody, and close all of it."""
    met = {meeting.rank: meeting.peers() for meeting in meetings}
    for rank, peers in met.items():
        assert set(peers) == set(met) - {rank}
        for peer, found in peers.items():
            own = b"greeting of %d" % peer
            assert found.greeting == own + (b" for greeting of %d" % rank if peer < rank else b"")
            found.sock.settimeout(BOUND_S)
            found.sock.sendall(bytes([rank, peer]))
    for rank, peers in met.items():
        for peer, found in peers.items():
            assert found.sock.recv(2) == bytes([peer, rank])
    close(*met.values())


def close(*met: dict[int, Peer]) -> None:
    for peers in met:
        for found in peers.values():
            found.sock.close()


def listens(port: Port) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(parse_endpoint(port.endpoint)) == 0


# Who comes when


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("seed", range(8))
def test_members_meet_in_every_order(ports: list[Port], seed: int, tls: bool) -> None:
    rng = random.Random(seed)
    size = rng.randrange(2, 6)
    order = rng.sample(range(size), size)
    meetings = []
    for rank in order:
        time.sleep(rng.choice([0, 0, 0.01, 0.1]))
        meetings.append(Meeting(ports[:size], rank, tls=tls_contexts() if tls else None).start())

    check_met(meetings)
    assert not any(listens(port) for port in ports)


def test_nobody_listens_who_waits_for_nobody(ports: list[Port]) -> None:
    three = ports[:3]
    first = [Meeting(three, rank).start() for rank in (0, 2)]
    wait_until(lambda: listens(three[0]))
    time.sleep(0.05)

    assert [listens(port) for port in three] == [True, False, False]

    check_met([*first, Meeting(three, 1).start()])


@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_member_that_comes_and_dies_and_comes_again_is_met(ports: list[Port], who: int) -> None:
    """All others wait all the time; it gives up three times, at any moment."""
    four = ports[:4]
    waiting = [Meeting(four, rank).start() for rank in range(3) if rank != who]
    for trial in range(3):
        meeting = Meeting(four, who).start()
        time.sleep(0.03 * trial)
        meeting.give_up()
        with pytest.raises(GivenUpError):
            meeting.peers()
    again = Meeting(four, who).start()
    last = Meeting(four, 3).start()

    check_met([*waiting, again, last])


def test_generations_follow_each_other_on_the_same_ports(ports: list[Port]) -> None:
    for generation in range(1, 15):
        check_met([Meeting(ports, rank, generation=generation).start() for rank in range(5)])


@pytest.mark.parametrize("seed", range(6))
def test_two_generations_may_be_met_at_once_on_the_same_ports(ports: list[Port], seed: int) -> None:
    """One member still waits in the old one when the others are in the new one."""
    rng = random.Random(seed)
    three = ports[:3]
    old = [Meeting(three, rank, generation=1, secret=bytes(32)).start() for rank in (0, 2)]
    time.sleep(rng.random() * 0.05)
    new = [Meeting(three, rank, generation=2).start() for rank in rng.sample(range(3), 3)]

    check_met(new)
    late = Meeting(three, 1, generation=1, secret=bytes(32)).start()
    check_met([*old, late])


def test_a_generation_that_nobody_ends_delays_no_other_one(ports: list[Port]) -> None:
    two = ports[:2]
    stuck = [Meeting(ports, 0, generation=n, secret=bytes([n] * 32)).start() for n in range(2, 6)]

    for _ in range(3):
        check_met([Meeting(two, rank).start() for rank in range(2)])

    for meeting in stuck:
        meeting.give_up()
        with pytest.raises(GivenUpError):
            meeting.peers()


# Giving up


# A reset in the middle of ssl.wrap_socket has Python close the descriptor with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_told_gives_up_at_once_at_any_moment(ports: list[Port], seed: int) -> None:
    rng = random.Random(seed)
    contexts = tls_contexts() if seed % 2 else None
    meetings = [Meeting(ports, rank, tls=contexts).start() for rank in rng.sample(range(5), 5)]
    time.sleep(rng.random() * 0.03)

    started_at = time.monotonic()
    for meeting in meetings:
        meeting.give_up()
    for meeting in meetings:
        with contextlib.suppress(GivenUpError):
            close(meeting.peers())

    assert time.monotonic() - started_at < 3.0
    assert not any(listens(port) for port in ports)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_who_is_alone_gives_up_at_its_deadline(ports: list[Port], rank: int) -> None:
    meeting = Meeting(ports[:3], rank, deadline_s=0.2).start()

    with pytest.raises(GivenUpError):
        meeting.peers()

    assert meeting.num_checks < 200


def test_what_a_check_raises_at_the_first_call_leaves_nothing_open(ports: list[Port]) -> None:
    meeting = Meeting(ports, 1, deadline_s=-1).start()

    with pytest.raises(GivenUpError):
        meeting.peers()


# Who does not belong


def test_a_member_that_is_not_admitted_is_told_and_nobody_else_notices(ports: list[Port]) -> None:
    def refuse(peer: int, greeting: bytes) -> bool:
        raise GivenUpError

    three = ports[:3]
    meetings = [
        Meeting(three, 0, admits=lambda peer, greeting: b"odd" not in greeting).start(),
        Meeting(three, 1).start(),
    ]
    odd = Meeting(three, 2, greeting=b"odd", admits=refuse).start()
    with pytest.raises(GivenUpError):
        odd.peers()
    time.sleep(0.1)
    assert not any(meeting.has_ended() for meeting in meetings)

    check_met([*meetings, Meeting(three, 2).start()])


@pytest.mark.parametrize(
    "other",
    [{"secret": bytes(32)}, {"generation": 2}, {"generation": 0}],
    ids=["secret", "older", "newer"],
)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_who_is_of_another_generation_gets_in_nowhere(
    ports: list[Port], rank: int, other: dict[str, Any]
) -> None:
    three = ports[:3]
    stranger = Meeting(three, rank, **other).start()
    meetings = [Meeting(three, each).start() for each in range(3) if each != rank]
    time.sleep(0.2)
    assert not any(meeting.has_ended() for meeting in [*meetings, stranger])

    stranger.give_up()
    check_met([*meetings, Meeting(three, rank).start()])
    with pytest.raises(GivenUpError):
        stranger.peers()


def hello(rank: int, to: int, *, secret: bytes = SECRET, generation: int = 1) -> bytes:
    """Return what a member says first."""
    who = word_of(secret) + mesh_who(generation, rank, to)
    return who + hmac.new(secret, b"hello\0" + who, "sha256").digest()


def mesh_who(generation: int, rank: int, to: int) -> bytes:
    return struct.pack("<QII", generation, rank, to) + os.urandom(32)


def answer_to(port: Port, said: bytes, *, wait_s: float = 0.5) -> bytes:
    """Say something at a port; return all that comes back until it hangs up or is silent."""
    wait_until(lambda: listens(port))
    heard = b""
    with socket.create_connection(parse_endpoint(port.endpoint)) as sock:
        sock.settimeout(wait_s)
        with contextlib.suppress(OSError):
            sock.sendall(said)
            while data := sock.recv(1000):
                heard += data
    return heard


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n" * 10,
        os.urandom(200),
        bytes(5000),
        hello(1, 0, secret=bytes(32)) * 2,
        hello(1, 0, generation=2),
        hello(1, 1),
        hello(0, 0),
        hello(3, 0),
        hello(2**32 - 1, 0),
        hello(1, 0)[:-1],
    ],
    ids=lambda said: f"{len(said)} bytes",
)
def test_a_stranger_hears_nothing(ports: list[Port], said: bytes) -> None:
    meeting = Meeting(ports[:3], 0).start()

    assert answer_to(ports[0], said) == b""

    assert not meeting.has_ended()
    check_met([meeting, *(Meeting(ports[:3], rank).start() for rank in (1, 2))])


def test_a_recorded_handshake_gets_in_nowhere(ports: list[Port], impatient: None) -> None:
    """All that a member said is said again, at once and to another one that still waits."""
    two = ports[:2]
    with Proxy(two[0].endpoint) as proxy:
        endpoints = [proxy.endpoint, two[1].endpoint]
        meetings = [Meeting(two, 0).start()]
        wait_until(lambda: listens(two[0]))
        meetings.append(Meeting(two, 1, endpoints=endpoints).start())
        check_met(meetings)
        said, heard = next(pair for pair in proxy.recorded if pair[1])
    again = Meeting(two, 0).start()

    assert len(answer_to(two[0], bytes(said))) == 64  # the answer, and no welcome
    assert answer_to(two[0], bytes(said)) == b""  # not twice
    assert not again.has_ended()

    with socket.create_server(("127.0.0.1", 0)) as server:
        fake = f"127.0.0.1:{server.getsockname()[1]}"
        victim = Meeting(two, 1, endpoints=[fake, two[1].endpoint]).start()
        for echoes in (False, True):
            sock, _ = server.accept()
            with sock:
                theirs = sock.recv(88, socket.MSG_WAITALL)
                sock.sendall(theirs if echoes else bytes(heard))
                sock.settimeout(BOUND_S)
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(1000) == b""  # no proof, no greeting
        victim.give_up()
        with pytest.raises(GivenUpError):
            victim.peers()
    check_met([again, Meeting(two, 1).start()])


def test_recorded_hellos_are_limited_in_number(ports: list[Port]) -> None:
    """Each of them passes for a member's until a proof is due."""
    three, process = ports[:3], psutil.Process()
    meeting = Meeting(three, 0).start()
    wait_until(lambda: listens(three[0]))
    before = process.num_fds()
    recorded = hello(1, 0)
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(socket.create_connection(parse_endpoint(three[0].endpoint)))
            sock.sendall(recorded)
        time.sleep(0.3)
        held = process.num_fds() - before - 300
        meetings = [meeting, *(Meeting(three, rank).start() for rank in (1, 2))]
        check_met(meetings)

    assert held < 150


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\n\r\n" * 5], ids=["silent", "talking"])
def test_many_strangers_delay_nobody(ports: list[Port], says: bytes) -> None:
    three = ports[:3]
    is_over = threading.Event()

    def flood() -> None:
        socks: list[socket.socket] = []
        while not is_over.is_set():
            with contextlib.suppress(OSError):
                socks.append(socket.create_connection(parse_endpoint(three[0].endpoint), 0.2))
                socks[-1].send(says)
            if len(socks) > 200:
                socks.pop(0).close()
        for sock in socks:
            sock.close()

    meetings = [Meeting(three, 0).start()]
    flooding = Running(flood)
    time.sleep(0.3)
    started_at = time.monotonic()
    meetings += [Meeting(three, rank).start() for rank in (1, 2)]
    check_met(meetings)
    took_s = time.monotonic() - started_at
    is_over.set()
    flooding.result()

    assert took_s < 3.0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_who_says_what_no_member_says_is_hung_up_on_and_told_nothing(
    ports: list[Port], tls: bool
) -> None:
    contexts = tls_contexts() if tls else None
    three = ports[:3]
    meeting = Meeting(three, 0, tls=contexts).start()
    wait_until(lambda: listens(three[0]))
    with contextlib.ExitStack() as stack:
        address = parse_endpoint(three[0].endpoint)
        strangers = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
        for sock in strangers:
            sock.send(bytes(100))
        for sock in strangers:
            sock.settimeout(BOUND_S)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        check_met([meeting, *(Meeting(three, rank, tls=contexts).start() for rank in (1, 2))])


def test_who_has_no_descriptor_left_waits_for_one_without_turning(ports: list[Port]) -> None:
    three = ports[:3]
    meeting = Meeting(three, 0).start()
    wait_until(lambda: listens(three[0]))
    first_free = os.dup(0)
    with socket.socket() as greeting:
        os.close(first_free)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, before[1]))
        try:
            greeting.connect(parse_endpoint(three[0].endpoint))
            greeting.send(hello(1, 0))
            time.sleep(0.1)
            checks = meeting.num_checks
            time.sleep(0.3)
            checks = meeting.num_checks - checks
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert 0 < checks < 60
    check_met([meeting, *(Meeting(three, rank).start() for rank in (1, 2))])


# Broken handshakes


def meet_through(ports: list[Port], fate: Fate, contexts: Any = None) -> None:
    """Let two meet where the first connection has that fate and all later ones are fine."""
    two = ports[:2]
    with Proxy(two[0].endpoint, lambda number: FINE if number else fate) as proxy:
        meetings = [Meeting(two, 0, tls=contexts, deadline_s=3.0).start()]
        wait_until(lambda: listens(two[0]))
        endpoints = [proxy.endpoint, two[1].endpoint]
        meetings.append(Meeting(two, 1, endpoints=endpoints, tls=contexts, deadline_s=3.0).start())
        try:
            first = meetings[1].peers()
        except GivenUpError:  # only what the acceptor said last was lost: it counts on a dead one
            assert not fate.forward, fate
            (left,) = meetings[0].peers().values()
            left.sock.settimeout(1.0)
            with contextlib.suppress(ConnectionResetError, ssl.SSLError):
                assert left.sock.recv(1) == b"", fate
            left.sock.close()
        else:
            other = meetings[0].peers()
            other[1].sock.settimeout(BOUND_S)
            first[0].sock.sendall(b"x")
            assert other[1].sock.recv(1) == b"x", fate
            close(first, other)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("after_bytes", [0, 40])
def test_a_hello_that_is_lost_is_soon_repeated(
    ports: list[Port], after_bytes: int, tls: bool
) -> None:
    contexts = tls_contexts() if tls else None
    meet_through(ports, Fate(Trouble.SWALLOW, after_bytes), contexts)


def test_a_hello_that_waits_for_long_is_not_given_up_for_later_ones(ports: list[Port]) -> None:
    """In a queue behind strangers the later ones would come to its end."""
    two = ports[:2]
    slow, lost = Fate(delay_s=0.3), Fate(Trouble.SWALLOW)
    with Proxy(two[0].endpoint, lambda number: lost if number else slow) as proxy:
        endpoints = [proxy.endpoint, two[1].endpoint]
        meetings = [Meeting(two, 0).start()]
        wait_until(lambda: listens(two[0]))
        check_met([*meetings, Meeting(two, 1, endpoints=endpoints).start()])

        assert len(proxy.recorded) > 2


FORWARD_BYTES, BACKWARD_BYTES = 88 + 36 + 13, 64 + 36
"""Of a handshake, but for the last greeting."""


@pytest.mark.parametrize("trouble", [Trouble.CLOSE, Trouble.RESET, Trouble.HALF])
def test_a_handshake_that_ends_at_any_byte_is_tried_again(
    ports: list[Port], impatient: None, trouble: Trouble
) -> None:
    for after_bytes in range(0, FORWARD_BYTES, 9):
        meet_through(ports, Fate(trouble, after_bytes))
    for after_bytes in range(0, 64, 9):
        meet_through(ports, Fate(trouble, after_bytes, forward=False))


@pytest.mark.parametrize("trouble", [Trouble.SWALLOW, Trouble.STALL])
@pytest.mark.parametrize("after_bytes", [0, 1, 50, 88, 100, FORWARD_BYTES - 1])
def test_a_handshake_that_stops_anywhere_is_tried_again(
    ports: list[Port], impatient: None, trouble: Trouble, after_bytes: int
) -> None:
    meet_through(ports, Fate(trouble, after_bytes))


def test_a_changed_byte_anywhere_is_noticed_by_both(ports: list[Port], impatient: None) -> None:
    for index in range(0, FORWARD_BYTES, 9):
        meet_through(ports, Fate(flip_at=index))
    for index in range(0, 64, 9):
        meet_through(ports, Fate(flip_at=index, forward=False))


@pytest.mark.parametrize("after_bytes", [70, 100, 600, 1500])
def test_a_handshake_of_tls_that_ends_anywhere_is_tried_again(
    ports: list[Port], impatient: None, after_bytes: int
) -> None:
    meet_through(ports, Fate(Trouble.RESET, after_bytes), tls_contexts())
    meet_through(ports, Fate(flip_at=after_bytes), tls_contexts())


def test_bytes_that_come_one_by_one_are_a_handshake_too(ports: list[Port]) -> None:
    meet_through(ports, Fate(slow_bytes=400))
    meet_through(ports, Fate(slow_bytes=400, forward=False))
    meet_through(ports, Fate(slow_bytes=4000), tls_contexts())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_handshake_may_meet_any_trouble_at_every_byte(ports: list[Port], impatient: None) -> None:
    for is_forward, count in ((True, FORWARD_BYTES), (False, BACKWARD_BYTES + 30)):
        for index in range(count):
            meet_through(ports, Fate(flip_at=index, forward=is_forward))
            for trouble in Trouble:
                meet_through(ports, Fate(trouble, index, forward=is_forward))


def test_a_connection_that_its_member_gave_up_does_not_count_as_there(
    ports: list[Port], impatient: None
) -> None:
    """What the member said came late, and with it the news that it has hung up."""
    two = ports[:2]
    meeting = Meeting(two, 0).start()
    wait_until(lambda: listens(two[0]))
    with held_up(meeting):
        hasty = Meeting(two, 1).start()
        time.sleep(1.2)  # it has tried more than once
    check_met([meeting, hasty])


def test_who_has_hung_up_meanwhile_is_not_there_whatever_it_has_proved(ports: list[Port]) -> None:
    two = ports[:2]
    meeting = Meeting(two, 0).start()
    wait_until(lambda: listens(two[0]))
    with (
        held_up(meeting) as is_held,
        socket.create_connection(parse_endpoint(two[0].endpoint)) as sock,
    ):
        sock.setblocking(False)
        deaf = cast("socket.socket", DeafUntil(sock, is_held))
        handshake = Handshake(sock=deaf, generation=1, secret=SECRET, size=2, rank=1, peer=0)
        steps = connecting(handshake, b"greeting of 1")
        wait_until(lambda: bool(next(steps)) and handshake.is_known)
    time.sleep(0.1)
    assert not meeting.has_ended()
    check_met([meeting, Meeting(two, 1).start()])


def test_of_many_hellos_that_come_late_and_all_at_once_the_last_counts(ports: list[Port]) -> None:
    """The others have given up all but one when this member wakes."""
    three = ports[:3]
    meeting = Meeting(three, 0).start()
    wait_until(lambda: listens(three[0]))
    with held_up(meeting, at_accept=True):
        others = [Meeting(three, rank).start() for rank in (1, 2)]
        time.sleep(1.0)  # each has tried four times
    check_met([meeting, *others])


class DeafUntil:
    """A socket that reads nothing before an event: nobody gets ahead of who waits for it."""

    def __init__(self, sock: socket.socket, event: threading.Event) -> None:
        self._sock, self._event = sock, event

    def recv(self, count: int) -> bytes:
        if not self._event.is_set():
            raise BlockingIOError
        return self._sock.recv(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@contextlib.contextmanager
def held_up(meeting: Meeting, *, at_accept: bool = False) -> Iterator[threading.Event]:
    """Keep a member from doing anything, as a stop would, once it has answered a hello.

    Yields what is set as soon as it is held.  ``at_accept``: before it answers.
    """
    gate, is_held = threading.Event(), threading.Event()
    advance = meeting.mesh._advance

    def held(descriptor: int) -> None:
        if at_accept:
            gate.wait(BOUND_S)
        advance(descriptor)
        attempt = meeting.mesh._attempts.get(descriptor)
        has_greeted = attempt is not None and not attempt.is_stranger
        if has_greeted or meeting.mesh._there:  # it may all have come at once
            is_held.set()
            gate.wait(BOUND_S)

    meeting.mesh._advance = held  # type: ignore[method-assign]
    try:
        yield is_held
    finally:
        gate.set()


# Children of the script


@contextlib.contextmanager
def child() -> Iterator[int]:
    """Fork a child that holds all descriptors and does nothing, as a loader of data may."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_child_that_holds_the_listener_keeps_no_port_open(ports: list[Port]) -> None:
    two = ports[:2]
    meeting = Meeting(two, 0).start()
    wait_until(lambda: listens(two[0]))
    with child():
        check_met([meeting, Meeting(two, 1).start()])

        assert not listens(two[0])
        check_met([Meeting(two, rank, generation=2).start() for rank in range(2)])


def test_a_child_that_holds_a_stranger_disturbs_no_member(
    ports: list[Port], impatient: None
) -> None:
    """The kernel goes on telling of what the child holds, under a number that is used again."""
    three = ports[:3]
    meeting = Meeting(three, 0).start()
    wait_until(lambda: listens(three[0]))
    time.sleep(0.5)
    with socket.create_connection(parse_endpoint(three[0].endpoint)) as stranger:
        time.sleep(0.1)
        with child():
            stranger.settimeout(BOUND_S)
            assert stranger.recv(1) == b""  # hung up
            checks = meeting.num_checks
            second = Meeting(three, 1).start()
            time.sleep(0.5)
            checks = meeting.num_checks - checks
            last = Meeting(three, 2).start()

            check_met([meeting, second, last])

    assert checks < 200
