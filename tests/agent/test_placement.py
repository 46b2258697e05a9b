"""Which worker is on which device."""

from __future__ import annotations

from pliant.agent.placement import Devices
from pliant.core.values import ReplicaId

R1, R2, R3 = (ReplicaId(f"r{n}") for n in (1, 2, 3))


def test_each_worker_has_a_device_of_its_own() -> None:
    devices = Devices(range(2))

    assert [devices.put(name) for name in (R1, R2, R3)] == [(0,), (1,), ()]
    assert devices.used == {0: R1, 1: R2}
    assert devices.devices_of(R2) == (1,)
    assert devices.devices_of(R3) == ()


def test_a_device_is_used_again_once_its_worker_is_gone() -> None:
    devices = Devices([0])
    devices.put(R1)

    devices.leave(R1)
    devices.leave(R1)

    assert devices.used == {}
    assert [devices.put(R2), devices.put(R3)] == [(0,), ()]


def test_a_device_that_was_just_left_is_the_last_to_be_used_again() -> None:
    devices = Devices(range(3))
    devices.put(R1)

    devices.leave(R1)

    assert [devices.put(name) for name in (R1, R2, R3)] == [(1,), (2,), (0,)]


def test_who_is_on_a_device_stays_there_when_it_may_not_be_used_any_more() -> None:
    devices = Devices(range(2))
    devices.put(R1)

    devices.allow([1, 2])

    assert devices.used == {0: R1}
    devices.leave(R1)
    assert [devices.put(name) for name in (R1, R2, R3)] == [(1,), (2,), ()]


def test_a_device_that_comes_back_while_it_is_used_is_not_free() -> None:
    devices = Devices([0])
    devices.put(R1)
    devices.allow([])
    devices.allow([0])

    assert devices.put(R2) == ()
    devices.leave(R1)
    assert devices.put(R2) == (0,)


def test_a_device_that_others_use_rests_longer_each_time() -> None:
    devices = Devices([0])
    rests = []
    for _ in range(7):
        devices.put(R1)
        rests.append(devices.rest(R1))
        assert devices.put(R2) == ()
        devices.wake(0)
        devices.wake(0)

    assert rests == [(0, rest_s) for rest_s in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)]
    assert [devices.put(R1), devices.put(R2)] == [(0,), ()]


def test_a_device_that_had_a_worker_since_rests_as_the_first_time() -> None:
    devices = Devices([0])
    devices.put(R1)
    devices.rest(R1)
    devices.wake(0)
    devices.put(R2)
    devices.leave(R2)

    devices.put(R3)

    assert devices.rest(R3) == (0, 1.0)


def test_a_device_that_rests_keeps_no_worker_from_another() -> None:
    devices = Devices(range(2))
    devices.put(R1)

    devices.rest(R1)
    devices.allow(range(3))

    assert devices.used == {}
    assert [devices.put(name) for name in (R1, R2, R3)] == [(1,), (2,), ()]


def test_a_device_that_was_given_back_while_it_rested_is_not_used_again() -> None:
    devices = Devices(range(2))
    devices.put(R1)
    devices.rest(R1)

    devices.allow([1])
    devices.wake(0)

    assert [devices.put(R2), devices.put(R3)] == [(1,), ()]


def test_the_workers_of_a_replica_have_a_device_each_or_wait_for_all_of_them() -> None:
    devices = Devices(range(5))

    assert [devices.put(name, 2) for name in (R1, R2, R3)] == [(0, 1), (2, 3), ()]
    devices.leave(R1)

    assert devices.put(R3, 2) == (4, 0)
    assert devices.devices_of(R3) == (4, 0)
    assert devices.used == {2: R2, 3: R2, 4: R3, 0: R3}


def test_only_the_device_that_others_use_rests_not_those_of_the_other_workers() -> None:
    devices = Devices(range(3))
    devices.put(R1, 3)

    assert devices.rest(R1, 1) == (1, 1.0)

    assert devices.put(R2, 2) == (0, 2)
    assert devices.put(R3) == ()


def test_what_a_worker_of_another_host_has_found_in_use_rests_there() -> None:
    devices = Devices([0])
    devices.put(R1)

    assert devices.rest(R1, 1) is None

    assert devices.used == {}
    assert devices.put(R2) == (0,)


def test_a_device_that_fails_rests_from_the_third_time_in_a_row() -> None:
    devices = Devices([0])
    rests = []
    for _ in range(5):
        devices.put(R1)
        rests.append(devices.rest(R1, after=3))
        devices.wake(0)

    assert rests == [None, None, (0, 1.0), (0, 2.0), (0, 4.0)]


def test_a_device_that_has_failed_is_the_last_to_be_tried_again() -> None:
    devices = Devices([0, 1])
    devices.put(R1)

    devices.rest(R1, after=3)

    assert [devices.put(name) for name in (R1, R2)] == [(1,), (0,)]


def test_a_cordoned_device_gets_nobody_and_keeps_who_is_there() -> None:
    devices = Devices(range(2))
    devices.put(R1)

    devices.cordon([0])

    assert (devices.used, devices.room) == ({0: R1}, 2)
    devices.leave(R1)
    assert devices.room == 1
    assert [devices.put(name) for name in (R1, R2)] == [(1,), ()]
    devices.cordon([])
    assert (devices.room, devices.put(R2)) == (2, (0,))
