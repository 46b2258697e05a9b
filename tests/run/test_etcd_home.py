"""A register in etcd: real members, which are killed, stand still and come back."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.checkpoint.proxy import Proxy, proxy
from tests.coordinator.test_register import FIRST, SECOND
from tests.run.etcd_cluster import EtcdCluster, cluster, obstacle

from pliant.coordinator.register import HeldRegister, StoredRegister
from pliant.core.errors import ConfigError, ConflictError, PermanentError
from pliant.core.takeover import CoordinatorSign
from pliant.core.values import Incarnation
from pliant.run import etcd, etcd_home
from pliant.run.etcd import EtcdKeys, EtcdPlace
from pliant.run.etcd_home import EtcdHome
from pliant.run.register_home import open_home

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
]

Open = Callable[..., EtcdHome]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with cluster(tmp_path_factory.mktemp("etcd"), 1) as lent:
        yield lent


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with cluster(tmp_path / "etcd", 3) as lent:
        yield lent


@pytest.fixture
def home(one: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return what opens a place of a cluster, as a coordinator does, perhaps through a proxy."""
    monkeypatch.setattr(EtcdHome, "write_again_s", (0.05,) * 200)

    def opened(lent: EtcdCluster = one, at: str = "") -> EtcdHome:
        url = lent.url(tmp_path.name)
        found = open_home(f"etcd://{at}/{tmp_path.name}" if at else url, tmp_path)
        assert isinstance(found, EtcdHome)
        return found

    return opened


@pytest.fixture
def road(one: EtcdCluster) -> Iterator[Proxy]:
    with proxy(f"http://127.0.0.1:{one.members[0].port}") as lent:
        yield lent


def at(road: Proxy) -> str:
    return road.endpoint.removeprefix("http://")


def test_a_register_is_replaced_only_if_it_is_as_expected(home: Open) -> None:
    first, other = home(), home()

    assert first.read() is None
    assert first.exchange(b"1", expected=None)
    assert not other.exchange(b"2", expected=None)
    assert other.exchange(b"2", expected=b"1")
    assert not first.exchange(b"3", expected=b"1")
    assert not home().exchange(b"3", expected=b"1")
    assert first.read() == b"2"
    assert first.exchange(b"3", expected=b"2")
    assert first.exchange(b"4", expected=b"3")


def test_what_was_removed_and_put_back_is_another_revision(one: EtcdCluster) -> None:
    keys = EtcdKeys(EtcdPlace.named(one.url("put-back")))
    first = keys.exchange("a", b"1", revision=0)
    assert first is not None
    keys.remove("a")
    keys.write("a", b"1")

    assert keys.exchange("a", b"2", revision=first.revision) is None
    assert keys.exchange("a", b"2", revision=0) is None


def test_of_coordinators_that_start_at_once_one_has_the_register(home: Open) -> None:
    homes = [home() for _ in range(4)]
    outcomes: list[str] = []
    gate = threading.Barrier(len(homes))

    def start(one: EtcdHome) -> None:
        gate.wait(20)
        try:
            StoredRegister(one).write(FIRST, expected=None)
            outcomes.append("written")
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=start, args=(one,)) for one in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(outcomes) == ["conflict", "conflict", "conflict", "written"]


def test_two_that_write_on_and_on_never_replace_what_they_did_not_read(home: Open) -> None:
    """Each counts what lies there up by one: nothing is lost, and nothing counts twice."""
    home().exchange(b"0", expected=None)
    taken: list[int] = []

    def count(one: EtcdHome) -> None:
        for _ in range(50):
            found = one.read()
            assert found is not None
            number = int(found) + 1
            if one.exchange(str(number).encode(), expected=found):
                taken.append(number)

    threads = [threading.Thread(target=count, args=(home(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(taken) == list(range(1, len(taken) + 1))
    assert home().read() == str(len(taken)).encode()


def test_a_coordinator_that_was_cut_off_loses_to_who_took_over(
    home: Open, road: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write, tried again and again, comes through at last, and changes nothing."""
    monkeypatch.setattr(etcd, "ANSWER_S", 0.5)

    async def play() -> None:
        old = HeldRegister(StoredRegister(home(at=at(road))))
        await old.read()
        await old.write(FIRST)
        road.is_hung = True
        writing = asyncio.create_task(old.write(SECOND))
        await asyncio.sleep(1.5)
        assert not writing.done()
        new = HeldRegister(StoredRegister(home()))
        assert await new.read() == FIRST
        await new.write(replace(FIRST, incarnation=Incarnation(2)))
        road.is_hung = False

        with pytest.raises(ConflictError, match="incarnation 2"):
            await asyncio.wait_for(writing, 30)
        await new.confirm()
        with pytest.raises(ConflictError, match="incarnation 2"):
            await old.confirm()

    asyncio.run(play())


def test_a_write_whose_connection_was_reset_is_made_again(home: Open, road: Proxy) -> None:
    held = HeldRegister(StoredRegister(home(at=at(road))))

    async def play() -> None:
        await held.write(FIRST)
        road.cut(after=1, times=3)
        await held.write(SECOND)
        await held.confirm()

    asyncio.run(play())

    assert road.num_cuts == 3
    assert StoredRegister(home()).read() == SECOND


def test_a_write_whose_answer_was_lost_is_seen_to_have_happened(
    home: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    real = EtcdKeys.exchange

    def answer_lost(self: EtcdKeys, name: str, data: bytes, *, revision: int) -> object:
        found = real(self, name, data, revision=revision)
        if len(lost) < 2:
            lost.append(name)
            raise ConnectionResetError(104, "Connection reset by peer")
        return found

    async def play() -> None:
        held = HeldRegister(StoredRegister(home()))
        await held.read()
        monkeypatch.setattr(EtcdKeys, "exchange", answer_lost)
        await held.write(FIRST)
        await held.write(SECOND)
        await held.confirm()

    asyncio.run(play())

    assert len(lost) == 2
    assert StoredRegister(home()).read() == SECOND


def test_a_write_of_another_whose_answer_was_lost_is_not_taken_for_ones_own(
    home: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both want to write the same; one has, and the other's write failed without a trace."""

    def unsent(self: EtcdKeys, name: str, data: bytes, *, revision: int) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    async def play() -> None:
        old, new = (HeldRegister(StoredRegister(home())) for _ in range(2))
        assert (await old.read(), await new.read()) == (None, None)
        with monkeypatch.context() as patched:
            patched.setattr(EtcdKeys, "exchange", unsent)
            writing = asyncio.create_task(old.write(FIRST))
            await asyncio.sleep(0.3)
        await new.write(FIRST)

        with pytest.raises(ConflictError):
            await writing

    asyncio.run(play())


def test_a_cluster_that_loses_its_leader_goes_on(home: Open, three: EtcdCluster) -> None:
    async def play() -> None:
        held = HeldRegister(StoredRegister(home(three)))
        await held.read()
        await held.write(FIRST)
        for number, member in enumerate(three.members, start=3):
            member.kill()
            now = replace(SECOND, incarnation=Incarnation(number))
            await held.write(now)
            await held.confirm()
            assert StoredRegister(home(three)).read() == now
            three.start(member)
            await asyncio.to_thread(three.wait_until_ready, three.url("ready", member))

    asyncio.run(play())


def test_a_member_that_stands_still_is_passed_over(
    home: Open, three: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was asked reaches the others once it goes on, and changes nothing any more."""
    monkeypatch.setattr(etcd, "ANSWER_S", 1.0)
    later = replace(SECOND, incarnation=Incarnation(2))

    async def play() -> None:
        held = HeldRegister(StoredRegister(home(three)))
        await held.read()
        await held.write(FIRST)
        three.members[0].freeze()
        await held.write(SECOND)
        await held.write(later)
        three.members[0].thaw()
        await asyncio.sleep(2)
        await held.confirm()

    asyncio.run(play())

    assert StoredRegister(home(three)).read() == later


def test_a_member_without_a_majority_shows_nothing_old(
    home: Open, three: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that only reaches that one does not see its register, and steps down."""
    monkeypatch.setattr(etcd, "ANSWER_S", 1.0)
    lonely, *others = three.members
    place = home(three, at=f"127.0.0.1:{lonely.port}")
    StoredRegister(place).write(FIRST, expected=None)
    for member in others:
        member.kill()

    with pytest.raises(OSError, match="etcd at 127"):
        place.read()
    with pytest.raises(OSError, match="etcd at 127"):
        place.exchange(b"2", expected=b"1")


def test_an_etcd_that_was_switched_off_has_the_register_still(
    home: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(lent: EtcdCluster) -> None:
        held = HeldRegister(StoredRegister(home(lent)))
        await held.read()
        await held.write(FIRST)
        (member,) = lent.members
        member.kill()
        writing = asyncio.create_task(held.write(SECOND))
        await asyncio.sleep(0.5)
        assert not writing.done()
        with pytest.raises(OSError, match="Connection refused: 'etcd at 127"):
            await asyncio.to_thread(StoredRegister(EtcdHome(lent.url(tmp_path.name))).read)
        lent.start(member)
        await asyncio.wait_for(writing, 30)
        assert StoredRegister(home(lent)).read() == SECOND

    with cluster(tmp_path / "etcd", 1) as lent:
        asyncio.run(play(lent))


def test_the_sign_and_the_name_of_the_job_lie_beside_the_register(
    home: Open, tmp_path: Path
) -> None:
    """Whichever host coordinates, the job is the same to its checkpoints."""
    one, other = home(), home()
    sign = CoordinatorSign(url="http://10.0.0.1:7000", incarnation=2, beat=7)
    outs = [tmp_path / name for name in ("a", "b", "c")]
    for out in outs:
        out.mkdir()

    assert one.read_sign() is None
    one.write_sign(sign)
    assert other.read_sign() == sign
    other.remove_sign()
    assert one.read_sign() is None
    one.settle("gpt", outs[0])
    other.settle("gpt", outs[1])
    assert (outs[0] / "holder").read_text() == (outs[1] / "holder").read_text()
    with pytest.raises(ConfigError, match="is that of job gpt; give job gpt-2 a place of its own"):
        home().settle("gpt-2", outs[2])
    assert not (outs[2] / "holder").exists()


def test_a_cluster_over_tls_wants_a_certificate_of_its_ca(
    home: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.files("etcd", names=["127.0.0.1"])
    asked = f"?ca={files.ca}&cert={files.certificate}&key={files.key}"
    served = {"trusted-ca-file": files.ca, "cert-file": files.certificate, "key-file": files.key}
    more = ("--client-cert-auth", *(f"--{name}={path}" for name, path in served.items()))
    with cluster(tmp_path / "etcd", 1, more) as lent:
        url = lent.url("gpt").replace("etcd://", "etcds://")
        lent.wait_until_ready(url + asked)

        known = open_home(url + asked, tmp_path)
        StoredRegister(known.register).write(FIRST, expected=None)

        assert str(known.register) == f"{url}/register.json"
        with pytest.raises(ConfigError, match=r"does it want a certificate \(\?cert=FILE&key=FILE"):
            open_home(f"{url}?ca={files.ca}", tmp_path)
        with pytest.raises(ConfigError, match=r"its certificate is not signed by the CA of the s"):
            open_home(url, tmp_path)


def test_a_cluster_that_wants_a_user_is_refused(tmp_path: Path) -> None:
    with cluster(tmp_path / "etcd", 1) as lent:
        etcdctl = ["etcdctl", f"--endpoints=127.0.0.1:{lent.members[0].port}"]
        if shutil.which("etcdctl") is None:
            pytest.skip("needs the command etcdctl (Debian: etcd-client)")
        for words in (["user", "add", "root:secret"], ["user", "grant-role", "root", "root"]):
            subprocess.run([*etcdctl, *words], check=True, env={"ETCDCTL_API": "3"}, timeout=20)
        subprocess.run([*etcdctl, "auth", "enable"], check=True, env={"ETCDCTL_API": "3"})

        with pytest.raises(ConfigError, match=r"^--register etcd://\S+/gpt: .*user name is emp"):
            open_home(lent.url("gpt"), tmp_path)


def test_what_is_no_etcd_is_refused(tmp_path: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(ConfigError, match=r"^--register etcd://\S+/gpt: .*Not Found"):
                open_home(f"etcd://127.0.0.1:{server.server_port}/gpt", tmp_path)
        finally:
            server.shutdown()


def test_a_place_in_etcd_has_hosts_and_a_name() -> None:
    place = EtcdPlace.named("etcd://10.0.0.1,[fd00::1]:2380/teams/gpt/")

    assert place.members == (("10.0.0.1", 2379), ("fd00::1", 2380))
    assert place.prefix == "teams/gpt"
    for wrong in ("etcd://", "etcd://a", "etcd://a/", "etcd://a,/gpt", "etcd://a:70000/gpt"):
        with pytest.raises(ConfigError, match="is no place in etcd; write etcd://HOST:2379/NAME"):
            EtcdPlace.named(wrong)


def test_a_cluster_that_comes_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hosts are switched on at the same moment as those of the job."""
    monkeypatch.setattr(etcd_home, "AGAIN_S", 0.1)
    with cluster(tmp_path / "etcd", 1) as lent:
        (member,) = lent.members
        member.kill()
        late = threading.Timer(1, lent.start, (member,))
        late.start()
        open_home(lent.url("gpt"), tmp_path)
        late.join()
        assert "Connection refused; it is waited for" in caplog.text

        member.kill()
        monkeypatch.setattr(etcd_home, "BEGIN_S", 0.5)
        with pytest.raises(PermanentError, match=r"gpt: etcd at \S+: Connection refused, for 0.5"):
            open_home(lent.url("gpt"), tmp_path)
