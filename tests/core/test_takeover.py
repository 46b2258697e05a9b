"""Who of several hosts coordinates: never two that decide, and always one in the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.takeover import (
    GONE_S,
    GONE_TURN_S,
    PATIENCE_S,
    STEP_DOWN_S,
    TURN_S,
    CoordinatorSign,
    Watch,
    knocked,
    looked,
    looking_again,
    steps_down,
    why_take_over,
)

A, B = "http://a:7000", "http://b:7000"
SIGN = CoordinatorSign(url=A, incarnation=3, beat=5)


def why(watch: Watch | None, now_s: float, **given: object) -> str | None:
    """Return why one takes over; None: it follows."""
    defaults: dict[str, object] = {"own_place": "b:7000", "turn": 1, "is_connected": False}
    return why_take_over(watch, now_s=now_s, **{**defaults, **given})  # type: ignore[arg-type]


def test_a_host_whose_agent_has_a_coordinator_follows_however_old_the_sign_is() -> None:
    watch = looked(None, SIGN, now_s=0.0)

    assert why(watch, 1e6, is_connected=True) is None


def test_a_coordinator_that_moves_its_sign_is_left_alone_though_this_host_does_not_reach_it() -> (
    None
):
    watch = looked(None, SIGN, now_s=0.0)
    for beat in range(6, 60):
        watch = looked(watch, replace(SIGN, beat=beat), now_s=2.0 * beat)
        assert why(watch, 2.0 * beat + PATIENCE_S) is None


def test_candidates_take_over_in_turn_when_the_sign_stands_still() -> None:
    watch = looked(looked(None, SIGN, now_s=100.0), SIGN, now_s=101.0)

    for turn in (0, 1, 2):
        limit_s = 100.0 + PATIENCE_S + TURN_S * turn
        assert why(watch, limit_s, turn=turn) is None
        assert (why(watch, limit_s + 1.0, turn=turn) or "").startswith(
            f"the coordinator at {A} has given no sign for "
        )


def test_where_nobody_listens_any_more_candidates_take_over_soon_in_turn() -> None:
    watch = knocked(looked(None, SIGN, now_s=100.0), is_refused=True, now_s=101.0)
    watch = knocked(looked(watch, SIGN, now_s=102.0), is_refused=True, now_s=102.0)

    for turn in (0, 1, 2):
        limit_s = 101.0 + GONE_S + GONE_TURN_S * turn
        assert why(watch, limit_s, turn=turn) is None
        assert why(watch, limit_s + 1.0, turn=turn) == (
            f"nobody has listened at {A} for {limit_s - 100.0:.0f} s"
        )


def test_a_place_that_refuses_counts_for_nothing_while_the_sign_moves_or_it_answers() -> None:
    """A firewall may refuse for it, and a coordinator may be started again there."""
    watch = knocked(looked(None, SIGN, now_s=0.0), is_refused=True, now_s=0.0)
    moved = looked(watch, replace(SIGN, beat=6), now_s=5.0)
    answered = knocked(watch, is_refused=False, now_s=5.0)
    later_s = GONE_S + GONE_TURN_S + 1.0

    assert why(watch, later_s) is not None
    assert why(knocked(moved, is_refused=True, now_s=5.0), later_s) is None
    assert why(answered, later_s) is None


def test_who_has_stepped_down_does_not_take_its_own_empty_place_for_a_loss() -> None:
    watch = looked(looking_again(0.0), SIGN, now_s=1.0)
    watch = knocked(watch, is_refused=True, now_s=1.0)

    assert why(watch, 1.0 + PATIENCE_S, own_place="a:7000") is None


def test_the_first_of_the_list_begins_a_job_at_once_and_the_others_let_it() -> None:
    watch = looked(None, None, now_s=0.0)

    assert why(watch, 0.0, turn=0) is not None
    assert why(watch, 0.0, turn=1) is None


def test_who_is_started_again_where_the_coordinator_died_does_not_wait() -> None:
    watch = looked(None, SIGN, now_s=0.0)

    assert why(watch, 0.0, own_place="a:7000", turn=2) is not None
    again = looked(watch, SIGN, now_s=1.0)
    assert why(again, 1.0, own_place="a:7000", turn=2) is None


def test_who_has_stepped_down_lets_the_others_go_first() -> None:
    """Also before it has looked again, and though it is the first of the list."""
    watch = looking_again(100.0)

    assert why(watch, 100.0, own_place="a:7000", turn=0) is None
    later_s = 100.0 + PATIENCE_S + 1.0
    assert why(watch, later_s, own_place="a:7000", turn=0) is not None


def test_nobody_takes_over_who_has_never_seen_the_register() -> None:
    assert why(None, 1e6, turn=0) is None


def test_a_coordinator_steps_down_for_others_only_and_before_they_take_over() -> None:
    assert not steps_down(unseen_s=1e6, num_candidates=1)
    assert not steps_down(unseen_s=STEP_DOWN_S, num_candidates=2)
    assert steps_down(unseen_s=STEP_DOWN_S + 0.1, num_candidates=2)
    assert STEP_DOWN_S < PATIENCE_S


# --- several hosts and one register, in turns of a second --------------------------------

BEAT_S = 2.0


@dataclass
class _Host:
    """One that may coordinate: its watch, and what it believes of the register."""

    url: str
    turn: int
    watch: Watch | None = None
    holds: int = 0
    """The incarnation as which it coordinates; 0: it does not."""
    seen_s: float = 0.0
    sees_register: bool = True
    reached: set[int] = field(default_factory=set)
    """Hosts whose coordinator it reaches."""


@dataclass
class _World:
    """A register written by compare-and-swap, and the sign beside it."""

    hosts: list[_Host]
    incarnation: int = 0
    sign: CoordinatorSign | None = None
    now_s: float = 0.0
    takeovers: list[tuple[float, int]] = field(default_factory=list)
    decided: list[tuple[int, int]] = field(default_factory=list)
    """The incarnation of each decision that came through, and what the register held."""

    def second(self) -> None:
        self.now_s += 1.0
        for number, host in enumerate(self.hosts):
            if host.holds:
                self._coordinate(host)
            else:
                self._watch(number, host)

    def _coordinate(self, host: _Host) -> None:
        if host.sees_register:
            if host.holds != self.incarnation:
                host.holds, host.watch = 0, looking_again(self.now_s)
                return
            host.seen_s = self.now_s
            self.decided.append((host.holds, self.incarnation))
            if self.now_s % BEAT_S == 0:
                beat = 0 if self.sign is None else self.sign.beat + 1
                self.sign = CoordinatorSign(url=host.url, incarnation=host.holds, beat=beat)
        elif steps_down(unseen_s=self.now_s - host.seen_s, num_candidates=len(self.hosts)):
            host.holds, host.watch = 0, looking_again(self.now_s)

    def _watch(self, number: int, host: _Host) -> None:
        if host.sees_register:
            host.watch = looked(host.watch, self.sign, now_s=self.now_s)
        if host.watch is not None and host.watch.seen is not None:
            place = next(n for n, one in enumerate(self.hosts) if one.url == host.watch.seen.url)
            is_refused = place in host.reached and not self.hosts[place].holds
            host.watch = knocked(host.watch, is_refused=is_refused, now_s=self.now_s)
        is_connected = any(
            other.holds == self.incarnation != 0 and index in host.reached
            for index, other in enumerate(self.hosts)
        )
        reason = why_take_over(
            host.watch,
            own_place=host.url.removeprefix("http://"),
            turn=host.turn,
            is_connected=is_connected,
            now_s=self.now_s,
        )
        if reason is not None and host.sees_register:
            self.incarnation += 1
            host.holds, host.seen_s = self.incarnation, self.now_s
            self.sign = CoordinatorSign(url=host.url, incarnation=host.holds, beat=0)
            self.takeovers.append((self.now_s, number))


TROUBLE = st.lists(
    st.tuples(
        st.integers(1, 90),
        st.sampled_from(["register", "mend", "kill", "cut", "join"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(trouble=TROUBLE)
def test_whatever_is_cut_one_decides_at_a_time_and_in_the_end_one_coordinates(
    trouble: list[tuple[int, str, int, int]],
) -> None:
    hosts = [_Host(f"http://h{n}:7000", n, reached={0, 1, 2}) for n in range(3)]
    world = _World(hosts)
    for seconds, what, one, other in trouble:
        for _ in range(seconds):
            world.second()
        match what:
            case "register":
                hosts[one].sees_register = False
            case "mend":
                hosts[one].sees_register = True
            case "kill":
                hosts[one].holds, hosts[one].watch = 0, None
            case "cut":
                hosts[one].reached.discard(other)
            case _:
                hosts[one].reached.add(other)
    for host in hosts:
        host.sees_register, host.reached = True, {0, 1, 2}
    healed_s = world.now_s
    for _ in range(int(PATIENCE_S + 3 * TURN_S + STEP_DOWN_S)):
        world.second()

    assert all(by == held for by, held in world.decided)
    (holder,) = [host for host in hosts if host.holds]
    assert holder.holds == world.incarnation
    assert sum(at_s > healed_s for at_s, _ in world.takeovers) <= 1
    settled = list(world.takeovers)
    for _ in range(200):
        world.second()
    assert world.takeovers == settled


def test_a_coordinator_that_only_others_do_not_reach_keeps_the_job() -> None:
    """Its agents elsewhere are cut off; to take over from it would not mend that."""
    hosts = [_Host(A, 0, reached={0}), _Host(B, 1, reached={1})]
    world = _World(hosts)

    for _ in range(600):
        world.second()

    assert world.takeovers == [(1.0, 0)]


def test_a_coordinator_that_loses_the_register_is_followed_by_one_that_sees_it() -> None:
    hosts = [_Host(A, 0, reached={0, 1}), _Host(B, 1, reached={0, 1})]
    world = _World(hosts)
    for _ in range(20):
        world.second()
    hosts[0].sees_register = False
    for _ in range(60):
        world.second()

    assert [number for _, number in world.takeovers] == [0, 1]
    assert hosts[0].holds == 0
    assert hosts[1].holds == 2


@pytest.mark.parametrize("hosts", [2, 3])
def test_all_that_start_at_once_begin_one_job(hosts: int) -> None:
    world = _World([_Host(f"http://h{n}", n, reached=set(range(hosts))) for n in range(hosts)])

    for _ in range(200):
        world.second()

    assert world.takeovers == [(1.0, 0)]
