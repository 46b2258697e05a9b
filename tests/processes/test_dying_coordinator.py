"""A coordinator is killed in the middle of every order that it gives; another host takes over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.live import namespaces
from tests.live.namespaces import Network
from tests.live.stage import DEADLINE_S
from tests.processes.hosts import digests_of, training_in, until
from tests.processes.test_take_over import candidates, check, net, out, told, trains_on  # noqa: F401

pytestmark = [
    pytest.mark.processes,
    pytest.mark.soak,  # each takes a minute
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(namespaces.obstacle()), reason=namespaces.obstacle()),
]


class Mortal:
    """Says when a coordinator dies, in words of its environment."""

    def __init__(self, order: str, directory: Path) -> None:
        self.may_die, self.has_died = directory / "may die", directory / "has died"
        self.words = {
            "DIES_AT": order,
            "DIES_WHEN": str(self.may_die),
            "DIES_MARK": str(self.has_died),
        }


@pytest.mark.parametrize("order", ["StartReplica", "Prepare", "Switch", "Reform", "Publish"])
def test_a_job_goes_on_whichever_order_only_half_of_the_hosts_have_got(
    net: Network,  # noqa: F811
    out: Path,  # noqa: F811
    tmp_path: Path,
    order: str,
) -> None:
    """The first host of the list dies with its replica; later it comes back."""
    a, b, c = net.hosts
    stop, mortal = tmp_path / "stop", Mortal(order, tmp_path)
    script: tuple[object, ...] = (100_000,)
    script += (tmp_path / "shared" / "kept",) if order == "Publish" else ()
    grows = order in ("StartReplica", "Prepare", "Switch")
    (first,) = candidates(net, out, *script, only="a", STOP_AT=str(stop), **mortal.words)
    others = candidates(net, out, *script, only="b" if grows else "bc", STOP_AT=str(stop))
    until(lambda: training_in(out) == set("ab" if grows else "abc"), "they train", *net.hosts)
    trains_on(out, *net.hosts)
    mortal.may_die.touch()
    if grows:
        others += candidates(net, out, *script, only="c", STOP_AT=str(stop))
    if order == "Reform":
        others.pop().kill()
    until(lambda: mortal.has_died.exists(), f"it dies at {order}", *net.hosts)
    assert first.wait(DEADLINE_S) in (-signal.SIGKILL, 128 + signal.SIGKILL), a.said()
    until(lambda: told(out, "coordinator_started"), "another coordinates", b, c)
    back = "ac" if order == "Reform" else "a"
    others += candidates(net, out, *script, only=back, STOP_AT=str(stop))
    until(lambda: training_in(out) == {"a", "b", "c"}, "all train", *net.hosts)
    trains_on(out, *net.hosts)
    stop.touch()

    codes = [program.wait(DEADLINE_S) for program in others]

    assert set(codes) == {0}, [host.said() for host in net.hosts]
    (digest,) = digests_of(out)
    check(out, digest, a)


def test_a_coordinator_that_dies_as_it_calls_the_roll_leaves_that_to_the_next(
    net: Network,  # noqa: F811
    out: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    a, b, c = net.hosts
    stop, mortal = tmp_path / "stop", Mortal("RollCall", tmp_path)
    (first,) = candidates(net, out, 100_000, only="a", STOP_AT=str(stop))
    (second,) = candidates(net, out, 100_000, only="b", STOP_AT=str(stop), **mortal.words)
    (third,) = candidates(net, out, 100_000, only="c", STOP_AT=str(stop))
    until(lambda: training_in(out) == {"a", "b", "c"}, "all train", a, b, c)
    trains_on(out, a, b, c)
    mortal.may_die.touch()
    first.kill()
    first.wait(DEADLINE_S)
    second.wait(DEADLINE_S)
    assert mortal.has_died.exists(), b.said()
    back = candidates(net, out, 100_000, only="ab", STOP_AT=str(stop))
    until(lambda: training_in(out) == {"a", "b", "c"}, "all train again", a, b, c)
    trains_on(out, a, b, c)
    stop.touch()

    assert {program.wait(DEADLINE_S) for program in (*back, third)} == {0}, a.said() + b.said()
    (digest,) = digests_of(out)
    check(out, digest, a)


def test_a_coordinator_that_dies_as_it_ends_the_job_has_ended_it(
    net: Network,  # noqa: F811
    out: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Half of the hosts have heard; the next coordinator tells the others, and trains nothing."""
    a, b, c = net.hosts
    stop, mortal = tmp_path / "stop", Mortal("EndJob", tmp_path)
    (first,) = candidates(net, out, 100_000, only="a", STOP_AT=str(stop), **mortal.words)
    others = candidates(net, out, 100_000, only="bc", STOP_AT=str(stop))
    until(lambda: training_in(out) == {"a", "b", "c"}, "all train", a, b, c)
    trains_on(out, a, b, c)
    mortal.may_die.touch()
    stop.touch()
    first.wait(DEADLINE_S)
    assert mortal.has_died.exists(), a.said()

    assert {program.wait(2 * DEADLINE_S) for program in others} == {0}, b.said() + c.said()
    (digest,) = digests_of(out)
    check(out, digest, a)
