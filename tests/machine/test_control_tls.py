"""A coordinator is the host that was meant, who connects is let in, and what fails is told."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import Authority

from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.machine.control_tls import RenewedTls, ServedTls, client_context, fault_of_tls

DEADLINE_S = 10.0
PLACE = "wss://gpu1:7000/v1/agents"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "job")


@pytest.fixture
def server(authority: Authority) -> TlsFiles:
    return authority.files("server", names=["gpu1", "10.0.0.1"])


def met(
    serve: Callable[[socket.socket], object],
    files: TlsFiles | None,
    host: str = "gpu1",
    trust: ssl.SSLContext | None = None,
) -> Exception | bytes:
    """Connect to a server; return what it said, or why there is no connection."""
    ours, theirs = socket.socketpair()
    other = threading.Thread(target=_served, args=(serve, theirs))
    other.start()
    ours.settimeout(DEADLINE_S)
    trust = trust or client_context(files)
    try:
        with trust.wrap_socket(ours, server_hostname=host) as end:
            return end.recv(100)  # only now a client knows that it was accepted
    except OSError as error:
        return error
    finally:
        ours.close()
        other.join(DEADLINE_S)


def _served(serve: Callable[[socket.socket], object], sock: socket.socket) -> None:
    sock.settimeout(DEADLINE_S)
    try:
        serve(sock)
    except OSError:
        pass
    finally:
        sock.close()


def over_tls(tls: RenewedTls) -> Callable[[socket.socket], object]:
    def serve(sock: socket.socket) -> None:
        with tls.context().wrap_socket(sock, server_side=True) as end:
            end.sendall(b"hello")

    return serve


def fault(outcome: Exception | bytes, files: TlsFiles | None, place: str = PLACE) -> str | None:
    assert isinstance(outcome, Exception)
    return fault_of_tls(outcome, place, files)


# --- who gets in ---------------------------------------------------------------------


@pytest.mark.parametrize("host", ["gpu1", "10.0.0.1"])
def test_who_has_a_certificate_of_the_job_gets_in(
    authority: Authority, server: TlsFiles, host: str
) -> None:
    assert met(over_tls(ServedTls(server, host)), authority.files("agent"), host) == b"hello"


def test_with_a_ca_who_has_a_certificate_of_another_does_not_get_in(
    server: TlsFiles, tmp_path: Path
) -> None:
    theirs = Authority(tmp_path / "theirs")
    theirs.ca.write_bytes(
        theirs.ca.read_bytes() + Path(server.ca).read_bytes()
    )  # it would accept us
    files = theirs.files()

    outcome = met(over_tls(ServedTls(server, "gpu1")), files)

    said = f"the coordinator at {PLACE} does not accept the certificate {files.certificate}"
    assert fault(outcome, files) == f"{said}: unknown ca"


def test_without_a_ca_the_token_alone_is_asked_for(server: TlsFiles) -> None:
    tls = ServedTls(TlsFiles(certificate=server.certificate, key=server.key), "gpu1")

    assert met(over_tls(tls), TlsFiles(ca=server.ca)) == b"hello"


# --- who connects looks, too ---------------------------------------------------------


def test_who_connects_refuses_another_host(authority: Authority, server: TlsFiles) -> None:
    """Its certificate may be of the same CA: a node of the job that was taken over."""
    files = authority.files("agent")

    outcome = met(over_tls(ServedTls(server, "gpu1")), files, host="gpu2")

    place = "https://gpu2:7000"
    said = f"the certificate of the coordinator at {place} does not name gpu2"
    assert fault(outcome, files, place) == said


def test_who_connects_refuses_another_ca(server: TlsFiles, tmp_path: Path) -> None:
    files = Authority(tmp_path / "theirs").files()

    outcome = met(over_tls(ServedTls(server, "gpu1")), files)

    assert fault(outcome, files) == (
        f"the certificate of the coordinator at {PLACE} is not signed by the CA {files.ca}"
    )


def test_who_connects_says_what_is_not_spoken(authority: Authority) -> None:
    files = authority.files()

    def refuse(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    outcome = met(refuse, files)

    assert fault(outcome, files) == (
        f"the coordinator at {PLACE} does not speak TLS: leave out the TLS options here, or give "
        "it some, too"
    )


def test_what_is_no_fault_of_tls_is_none() -> None:
    assert fault(ConnectionRefusedError(), None) is None


# --- what is refused before anybody connects -----------------------------------------


@pytest.mark.parametrize("name", ["gpu2", "10.0.0.2", "gpu1.local"])
@pytest.mark.parametrize("with_ca", [True, False])
def test_a_server_that_does_not_have_its_name_is_refused(
    server: TlsFiles, name: str, *, with_ca: bool
) -> None:
    files = TlsFiles(
        ca=server.ca if with_ca else "", certificate=server.certificate, key=server.key
    )

    with pytest.raises(ConfigError, match=re.escape(f"{server.certificate} does not name {name}")):
        ServedTls(files, name)


def test_a_server_without_a_ca_is_refused_when_it_has_expired(authority: Authority) -> None:
    old = authority.files(days=(-3, -1), names=["gpu1"])

    with pytest.raises(ConfigError, match="has expired"):
        ServedTls(TlsFiles(certificate=old.certificate, key=old.key), "gpu1")


def test_a_client_that_a_coordinator_would_refuse_does_not_try(authority: Authority) -> None:
    old = authority.files(days=(-3, -1))

    with pytest.raises(ConfigError, match="has expired"):
        client_context(old)


# --- renewal -------------------------------------------------------------------------


def certificate_of(tls: ServedTls, files: TlsFiles) -> bytes | None:
    """Return the certificate that a server shows."""
    shown: list[bytes | None] = []
    ours, theirs = socket.socketpair()
    other = threading.Thread(target=_served, args=(over_tls(tls), theirs))
    other.start()
    with client_context(files).wrap_socket(ours, server_hostname="gpu1") as end:
        shown.append(end.getpeercert(binary_form=True))
        end.recv(10)
    other.join(DEADLINE_S)
    return shown[0]


def test_what_is_renewed_counts_for_the_next_connection(
    authority: Authority, server: TlsFiles
) -> None:
    tls, agent = ServedTls(server, "gpu1"), authority.files("agent")
    before = certificate_of(tls, agent)
    authority.files("server", names=["gpu1"])

    assert tls.context() is tls.context()
    assert before != certificate_of(tls, agent) is not None


@pytest.mark.parametrize("left", ["nothing", "half", "another name"])
def test_what_cannot_be_used_leaves_what_was_before(
    authority: Authority, server: TlsFiles, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls, agent = ServedTls(server, "gpu1"), authority.files("agent")
    before = certificate_of(tls, agent)
    if left == "nothing":
        Path(server.certificate).unlink()
    elif left == "half":
        Path(server.key).write_bytes(Path(agent.key).read_bytes())
    else:
        authority.files("server", names=["gpu2"])

    assert certificate_of(tls, agent) == before == certificate_of(tls, agent)
    assert caplog.text.count("what it was before counts") == 1


def test_a_ca_that_is_replaced_is_no_longer_trusted(authority: Authority, server: TlsFiles) -> None:
    tls, agent = ServedTls(server, "gpu1"), authority.files("agent")
    Authority(authority.directory).files("server", names=["gpu1"])
    trust = ssl.create_default_context(cafile=authority.ca)
    trust.verify_flags &= ~ssl.VERIFY_X509_STRICT  # from Python 3.13 on it asks for more of a CA
    trust.load_cert_chain(agent.certificate, agent.key)

    outcome = met(over_tls(tls), agent, trust=trust)

    assert f"does not accept the certificate {agent.certificate}" in str(fault(outcome, agent))
