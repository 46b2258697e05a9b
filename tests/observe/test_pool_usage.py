"""What was used of a pool is right over restarts, clocks that jump and logs that are cut."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.observe.log import Record
from pliant.observe.pool_usage import By, PoolUsage, usage_of

HOUR = 3600.0


class Story:
    """A pool's log, told by the hour."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.mono, self.at, self.boot = 1000.0, 5e5, "one"
        self.tell("pool_started", user="cy", boot="one")

    def pass_(self, hours: float, *, clock_jumps_s: float = 0.0) -> None:
        self.mono += hours * HOUR
        self.at += hours * HOUR + clock_jumps_s

    def tell(self, kind: str, **values: Any) -> None:
        self.records.append({"kind": kind, "mono": self.mono, "at": self.at, **values})

    def asks(self, name: str, team: str = "default", **more: Any) -> None:
        claim = {"name": name, "team": team, "min_replicas": 1, "ask_replicas": 4, **more}
        self.tell("asked", claim=claim)

    def gets(self, name: str, *devices: int) -> None:
        self.tell("grant", name=name, to=len(devices), devices=list(devices))

    def gives(self, name: str, *devices: int) -> None:
        self.tell("released", name=name, devices=list(devices))

    def starts_again(self, hours: float, *, reboots: bool = False) -> None:
        self.pass_(hours)
        if reboots:
            self.mono, self.boot = 10.0, "another"
        self.tell("pool_started", user="cy", boot=self.boot)

    def returns(self, name: str, *devices: int, team: str = "default") -> None:
        claim = {"name": name, "team": team, "ask_replicas": 4}
        self.tell("recovered", claim=claim, devices=list(devices))

    def usage(self, by: By = "team", hours: float | None = None, **more: Any) -> PoolUsage:
        since_s = None if hours is None else hours * HOUR
        now = {"now_at": self.at, "now_mono": self.mono, **more}
        return usage_of(self.records, by=by, since_s=since_s, **now)

    def hours(self, by: By = "team", hours: float | None = None) -> dict[str, tuple[float, float]]:
        found = self.usage(by, hours)
        rows = {row.name: (row.device_s / HOUR, row.waiting_s / HOUR) for row in found.rows}
        assert sum(row.device_s for row in found.rows) == pytest.approx(found.total.device_s)
        return rows


@pytest.fixture
def story() -> Story:
    return Story()


def test_devices_and_waiting_are_summed_by_team_user_and_job(story: Story) -> None:
    story.asks("ada/gpt", "vision")
    story.gets("ada/gpt", 0, 1)
    story.asks("bob/cnn", "speech")
    story.pass_(1)
    story.tell("shrink", name="ada/gpt", to=1, devices=[], for_="bob/cnn")
    story.gives("ada/gpt", 1)
    story.gets("bob/cnn", 1)
    story.asks("solo", "vision")
    story.pass_(2)
    story.tell("gone", name="bob/cnn")
    story.gives("bob/cnn", 1)
    story.pass_(1)

    assert story.hours() == {"vision": (5.0, 3.0), "speech": (2.0, 1.0)}
    assert story.hours("user") == {"ada": (5.0, 0.0), "bob": (2.0, 1.0), "cy": (0.0, 3.0)}
    assert story.hours("job")["ada/gpt"] == (5.0, 0.0)
    assert {row.name: row.preemptions for row in story.usage("user").rows} == {
        "ada": 1,
        "bob": 0,
        "cy": 0,
    }
    assert story.usage().total.claims == 3


def test_only_the_span_that_was_asked_for_counts(story: Story) -> None:
    story.asks("a")
    story.gets("a", 0)
    story.pass_(3)
    story.gets("a", 1)
    story.pass_(1)

    assert story.hours(hours=2) == {"default": (3.0, 0.0)}
    assert story.hours(hours=0.5) == {"default": (1.0, 0.0)}
    assert not story.usage(hours=4).is_cut
    long = story.usage(hours=24)
    assert (long.is_cut, long.since_at) == (True, story.at - 4 * HOUR)


def test_since_a_pool_has_ended_nothing_was_used(story: Story) -> None:
    """Three days later, its last day is not the last day."""
    story.asks("a")
    story.gets("a", 0)
    story.pass_(2)
    story.tell("pool_stopped", name="p", keeping=["a"])
    story.pass_(72)

    day, all_ = (story.usage(hours=hours, now_mono=None) for hours in (24, None))

    assert (day.rows, day.is_cut, day.since_at) == ((), False, story.at - 24 * HOUR)
    assert (all_.total.device_s, all_.since_at) == (2 * HOUR, story.at - 74 * HOUR)


def test_what_claims_have_is_kept_once_however_much_is_written(story: Story) -> None:
    for number in range(50):
        story.asks(f"u/{number}")
        story.gets(f"u/{number}", number)
    begun = len(story.records)
    for _ in range(2000):
        story.pass_(0.1)
        story.tell("overdue", name="u/1", excess=1)
    usage_of(story.records[:begun], by="job", now_at=story.at)  # what is loaded once

    tracemalloc.start()
    try:
        assert story.usage().total.claims == 50
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 1_500_000  # a tuple of its own for each was 9 MB


@pytest.mark.parametrize("jumps_s", [-7200.0, 86_400.0])
def test_a_wall_clock_that_is_set_changes_no_sum(story: Story, jumps_s: float) -> None:
    story.asks("a")
    story.gets("a", 0)
    story.pass_(1, clock_jumps_s=jumps_s)
    story.tell("devices_set", count=4)
    story.pass_(1)

    assert story.hours(hours=24) == {"default": (2.0, 0.0)}


def test_what_was_held_while_the_pool_was_dead_counts_if_it_is_held_after(story: Story) -> None:
    story.asks("stays")
    story.gets("stays", 0, 1)
    story.asks("dies")
    story.gets("dies", 2)
    story.asks("waits")
    story.pass_(1)
    story.tell("devices_set", count=4)
    story.starts_again(2)
    story.returns("stays", 0, 1)
    story.returns("waits")
    story.pass_(1)

    assert story.hours("job") == {"stays": (8.0, 0.0), "dies": (1.0, 0.0), "waits": (0.0, 4.0)}


def test_only_who_had_to_give_for_another_was_preempted(story: Story) -> None:
    story.asks("a")
    story.gets("a", 0, 1)
    story.pass_(1)
    story.tell("shrink", name="a", to=1, devices=[], for_=None)
    story.pass_(1)

    assert story.usage().total.preemptions == 0


def test_a_claim_that_is_gone_waits_no_longer(story: Story) -> None:
    story.asks("waits")
    story.pass_(1)
    story.tell("gone", name="waits")
    story.pass_(5)

    assert story.hours() == {"default": (0.0, 1.0)}


def test_who_returns_after_a_reboot_held_nothing_meanwhile(story: Story) -> None:
    story.asks("a")
    story.gets("a", 0)
    story.pass_(1)
    story.tell("devices_set", count=4)
    story.starts_again(5, reboots=True)
    story.returns("a", 0)
    story.pass_(1)

    assert story.hours() == {"default": (2.0, 0.0)}


def test_nothing_is_held_over_a_reboot(story: Story) -> None:
    story.asks("a")
    story.gets("a", 0)
    story.pass_(1)
    story.tell("devices_set", count=4)
    story.starts_again(5, reboots=True)
    story.asks("a")
    story.gets("a", 0)
    story.pass_(1)

    assert story.hours() == {"default": (2.0, 0.0)}
    assert story.hours(hours=6.5) == {"default": (1.5, 0.0)}


def test_a_log_that_was_cut_goes_on_from_the_next_list_of_holders(story: Story) -> None:
    story.asks("lost", "vision")
    story.gets("lost", 0)
    story.pass_(1)
    story.records.clear()
    claims = [
        {"name": "lost", "team": "vision", "devices": [0, 1], "waits": False},
        {"name": "new", "team": "speech", "devices": [], "waits": True},
    ]
    story.tell("holding", claims=claims)
    story.pass_(2)
    story.gives("lost", 0)
    story.tell("holding", claims=claims[1:])
    story.pass_(1)

    assert story.hours() == {"vision": (4.0, 0.0), "speech": (0.0, 3.0)}
    assert story.usage(hours=10).is_cut


def test_what_is_refused_or_suspended_is_told_apart(story: Story) -> None:
    story.asks("never")
    story.tell("refuse", name="never", reason="x")
    story.asks("a")
    story.gets("a", 0)
    story.pass_(1)
    story.tell("suspend", name="a", for_="b")
    story.gives("a", 0)
    story.pass_(1)
    story.gets("a", 0)
    story.pass_(1)

    assert story.hours("job") == {"a": (2.0, 1.0)}


def test_who_is_refused_another_team_goes_on_in_its_own(story: Story) -> None:
    story.asks("a", team="vision")
    story.gets("a", 0)
    story.asks("b", team="vision")
    story.pass_(1)
    for name in "ab":
        story.asks(name, team="speech")
        story.tell("refuse", name=name, reason="x")
    story.pass_(1)

    assert story.hours() == {"vision": (2.0, 2.0)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["asks", "gets", "gives", "gone", "restart", "holding", "junk"]),
            st.sampled_from("abc"),
            st.integers(0, 3),
            st.floats(0, 5),
            st.floats(-9e4, 9e4),
        ),
        max_size=40,
    ),
    st.none() | st.floats(0, 100),
)
def test_no_log_gives_more_than_there_was(happens: list[Any], hours: float | None) -> None:
    """Whatever is in it: no sum is negative, and none is above its span times the devices."""
    story = Story()
    for what, name, device, passed, jumps_s in happens:
        story.pass_(passed, clock_jumps_s=jumps_s)
        match what:
            case "asks":
                story.asks(name)
            case "gets":
                story.gets(name, device)
            case "gives":
                story.gives(name, device)
            case "gone":
                story.tell("gone", name=name)
            case "restart":
                story.starts_again(0.5)
                story.returns(name, device)
            case "holding":
                story.tell("holding", claims=[{"name": name, "devices": [device], "waits": False}])
            case _:
                story.tell("grant", name=7, devices="x")
    found = story.usage("job", hours)
    span_s = found.until_at - found.since_at
    assert hours is None or span_s <= hours * HOUR + 1e-3
    for row in (*found.rows, found.total):
        assert 0 <= row.device_s <= 12 * span_s + 1e-2
        assert 0 <= row.waiting_s <= 3 * span_s + 1e-2
