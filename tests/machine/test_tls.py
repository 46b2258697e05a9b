"""Who talks over TLS is of the job, or the host that was meant; and what fails is told."""

from __future__ import annotations

import os
import pty
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.certificates import BOTH_ENDS, Authority, set_password

from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles
from pliant.machine.tls import (
    RenewedTls,
    ServedTls,
    TlsContexts,
    client_context,
    exposed_key,
    fault_of_tls,
)

DEADLINE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """What one end knows of a connection over which both have said something."""

    version: str | None
    compression: str | None
    peer: object
    is_resumed: bool
    can_be_resumed: bool


Outcome = Accepted | OSError


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "job")


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Outcome, Outcome]:
    """Let two ends shake hands and exchange a byte; return what each knows, or why it refused."""
    ends, outcomes = socket.socketpair(), dict[str, Outcome]()

    def shake(name: str, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.settimeout(DEADLINE_S)
        try:
            with context.wrap_socket(sock, server_side=name == "server") as end:
                outcomes[name] = _exchanged(end)
        except OSError as error:
            outcomes[name] = error

    other = threading.Thread(target=shake, args=("client", ends[1], client))
    other.start()
    shake("server", ends[0], server)
    other.join(2 * DEADLINE_S)
    assert not any(isinstance(outcome, TimeoutError) for outcome in outcomes.values())
    return outcomes["server"], outcomes["client"]


def _exchanged(end: ssl.SSLSocket) -> Outcome:
    end.sendall(b"x")
    if end.recv(1) != b"x":  # only now a client knows that it was accepted
        return ConnectionError("the other end has hung up")
    session = end.session
    return Accepted(
        version=end.version(),
        compression=end.compression(),
        peer=(end.getpeercert() or {})["subject"],
        is_resumed=bool(end.session_reused),
        can_be_resumed=session is not None and session.has_ticket,
    )


def refusal(files: TlsFiles) -> str:
    with pytest.raises(ConfigError) as caught:
        TlsContexts.of(files)
    return str(caught.value)


# --- who talks to whom --------------------------------------------------------------


def test_two_nodes_of_a_job_talk_over_tls_1_3_and_see_each_others_certificate(
    authority: Authority,
) -> None:
    one, other = TlsContexts.of(authority.files("one")), TlsContexts.of(authority.files("other"))

    server, client = met(one.server, other.client)

    plain = Accepted(
        version="TLSv1.3", compression=None, peer=None, is_resumed=False, can_be_resumed=False
    )
    assert server == replace(plain, peer=((("commonName", "other"),),))
    assert client == replace(plain, peer=((("commonName", "one"),),))


def test_a_node_talks_to_another_process_of_its_own(authority: Authority) -> None:
    contexts = TlsContexts.of(authority.files())

    for outcome in met(contexts.server, contexts.client):
        assert isinstance(outcome, Accepted)


def test_a_node_of_a_foreign_ca_is_refused_as_a_client(
    authority: Authority, tmp_path: Path
) -> None:
    ours = TlsContexts.of(authority.files())
    theirs = TlsContexts.of(Authority(tmp_path / "theirs").files())
    theirs.client.load_verify_locations(authority.ca)  # it would accept us

    server, client = met(ours.server, theirs.client)

    assert isinstance(server, ssl.SSLCertVerificationError)
    assert isinstance(client, OSError)


def test_a_node_of_a_foreign_ca_is_refused_as_a_server(
    authority: Authority, tmp_path: Path
) -> None:
    ours = TlsContexts.of(authority.files())
    theirs = TlsContexts.of(Authority(tmp_path / "theirs").files())
    theirs.server.load_verify_locations(authority.ca)

    server, client = met(theirs.server, ours.client)

    assert isinstance(client, ssl.SSLCertVerificationError)
    assert isinstance(server, OSError)


def test_a_client_without_a_certificate_is_refused(authority: Authority) -> None:
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname = False
    nobody.load_verify_locations(authority.ca)

    server, client = met(TlsContexts.of(authority.files()).server, nobody)

    assert isinstance(server, ssl.SSLError)
    assert isinstance(client, OSError)


@pytest.mark.parametrize("old", ["server", "client"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_1_2_is_refused(authority: Authority, old: str) -> None:
    ours, theirs = TlsContexts.of(authority.files()), TlsContexts.of(authority.files("other"))
    context: ssl.SSLContext = getattr(theirs, old)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    pair = (ours.server, context) if old == "client" else (context, ours.client)

    for outcome in met(*pair):
        assert isinstance(outcome, OSError)


def test_nothing_is_trusted_but_the_ca(authority: Authority) -> None:
    contexts = TlsContexts.of(authority.files())

    for context in (contexts.server, contexts.client):
        assert [one["subject"] for one in context.get_ca_certs()] == [
            ((("commonName", "ca of job"),),)
        ]
        assert context.cert_store_stats()["x509"] == 1  # not the node's own either


def test_the_kernel_does_not_encrypt(authority: Authority) -> None:
    contexts = TlsContexts.of(authority.files())

    for context in (contexts.server, contexts.client):
        assert not context.options & getattr(ssl, "OP_ENABLE_KTLS", 1 << 3)


def test_a_key_of_another_algorithm_does_as_well(authority: Authority) -> None:
    TlsContexts.of(authority.files(is_rsa=True))


def test_a_certificate_may_bring_those_between_it_and_the_ca(
    authority: Authority, tmp_path: Path
) -> None:
    team = Authority(tmp_path / "team", issuer=authority)
    files = replace(team.files(), ca=str(authority.ca))
    with Path(files.certificate).open("ab") as certificate:
        certificate.write(team.ca.read_bytes())
    ours, theirs = TlsContexts.of(authority.files("other")), TlsContexts.of(files)

    for outcome in (*met(ours.server, theirs.client), *met(theirs.server, ours.client)):
        assert isinstance(outcome, Accepted)


# --- renewal ------------------------------------------------------------------------


def test_renewed_contexts_have_the_certificate_of_now(authority: Authority) -> None:
    before = TlsContexts.of(authority.files(days=(-1, 1)))
    authority.files(days=(-1, 60))

    assert before.renewed() is not before


def test_what_cannot_be_used_leaves_the_contexts_as_they_are(authority: Authority) -> None:
    before = TlsContexts.of(authority.files())
    Path(before.files.key).write_bytes(Path(authority.files("other").key).read_bytes())

    assert before.renewed() is before
    Path(before.files.key).unlink()
    assert before.renewed() is before


# --- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize(("role", "word"), [("ca", "CA"), ("certificate",) * 2, ("key",) * 2])
def test_a_file_that_cannot_be_read_is_named(authority: Authority, role: str, word: str) -> None:
    files = authority.files()

    assert refusal(replace(files, **{role: "/gone.pem"})) == (
        f"the {word} /gone.pem cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30\x82\x01\x22",
        b"-----BEGIN WORD-----\nAAAA\n-----END WORD-----\n",
        b"-----BEGIN WORD-----\n!",
    ],
)
@pytest.mark.parametrize(("role", "word"), [("ca", "CA"), ("certificate",) * 2, ("key",) * 2])
def test_a_file_that_is_not_pem_is_named(
    authority: Authority, role: str, word: str, data: bytes
) -> None:
    what = "private key" if role == "key" else "certificate"
    path = authority.directory / "other"
    path.write_bytes(data.replace(b"WORD", what.upper().encode()))

    said = refusal(replace(authority.files(), **{role: str(path)}))

    assert said == f"the {word} {path} holds no {what} in PEM form"


@pytest.mark.parametrize("kinds", [(False, False), (False, True), (True, False)])
def test_a_key_of_another_certificate_is_named(
    authority: Authority, kinds: tuple[bool, bool]
) -> None:
    files, other = (
        authority.files(name, is_rsa=kind)
        for name, kind in zip(("one", "other"), kinds, strict=True)
    )

    said = refusal(replace(files, key=other.key))

    assert said == f"the key {other.key} does not belong to the certificate {files.certificate}"


def of_another_ca(authority: Authority, elsewhere: Path) -> TlsFiles:
    return replace(Authority(elsewhere).files(), ca=str(authority.ca))


def before_its_ca_was_made_anew(authority: Authority, elsewhere: Path) -> TlsFiles:
    files = authority.files()
    Authority(authority.directory)
    return files


@pytest.mark.parametrize(
    ("make", "flaw"),
    [
        (lambda own, _: own.files(days=(-3, -1)), "has expired, or its CA has"),
        (
            lambda _, elsewhere: Authority(elsewhere, days=(-3, -1)).files(),
            "has expired, or its CA has",
        ),
        (
            lambda own, _: own.files(days=(1, 3)),
            "is not valid yet, or its CA is not; compare the clocks",
        ),
        (of_another_ca, "is not signed by the CA {ca}"),
        (before_its_ca_was_made_anew, "is not signed by the CA {ca}"),
        *(
            (
                lambda own, _, usage=usage: own.files(usages=[usage]),
                "is not for both ends of a connection; its extendedKeyUsage must name serverAuth"
                " and clientAuth, or be left out",
            )
            for usage in BOTH_ENDS
        ),
    ],
)
def test_a_certificate_that_others_would_not_accept_is_named(
    authority: Authority, tmp_path: Path, make: Callable[[Authority, Path], TlsFiles], flaw: str
) -> None:
    files = make(authority, tmp_path / "elsewhere")

    said = refusal(files)

    assert said == f"the certificate {files.certificate} {flaw.format(ca=authority.ca)}"


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(authority: Authority) -> None:
    files = authority.files()
    set_password(Path(files.key))
    load = (
        "import sys; from pliant.core.values import TlsFiles;"
        "from pliant.machine.tls import TlsContexts;"
        "TlsContexts.of(TlsFiles(ca=sys.argv[1], certificate=sys.argv[2], key=sys.argv[3]))"
    )
    terminal, inner = pty.openpty()

    ended = subprocess.run(
        ["setsid", "--ctty", sys.executable, "-c", load, files.ca, files.certificate, files.key],
        stdin=inner,
        stdout=inner,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(inner)
    os.close(terminal)

    assert ended.stderr.splitlines()[-1].endswith(
        f"the key {files.key} has a password, which nobody is asked for; remove it"
    )


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_that_everybody_can_read_is_warned_of(
    authority: Authority, mode: int, is_exposed: bool
) -> None:
    files = authority.files()
    Path(files.key).chmod(mode)

    warning = exposed_key(files)

    said = f"every user of this machine can read the key {files.key}; chmod 600 it"
    assert warning == (said if is_exposed else None)


PLACE = "wss://gpu1:7000/v1/agents"


@pytest.fixture
def server(authority: Authority) -> TlsFiles:
    return authority.files("server", names=["gpu1", "10.0.0.1"])


def met_at_a_port(
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
    assert (
        met_at_a_port(over_tls(ServedTls(server, host)), authority.files("agent"), host) == b"hello"
    )


def test_with_a_ca_who_has_a_certificate_of_another_does_not_get_in(
    server: TlsFiles, tmp_path: Path
) -> None:
    theirs = Authority(tmp_path / "theirs")
    theirs.ca.write_bytes(
        theirs.ca.read_bytes() + Path(server.ca).read_bytes()
    )  # it would accept us
    files = theirs.files()

    outcome = met_at_a_port(over_tls(ServedTls(server, "gpu1")), files)

    said = f"the coordinator at {PLACE} does not accept the certificate {files.certificate}"
    assert fault(outcome, files) == f"{said}: unknown ca"


def test_without_a_ca_the_token_alone_is_asked_for(server: TlsFiles) -> None:
    tls = ServedTls(TlsFiles(certificate=server.certificate, key=server.key), "gpu1")

    assert met_at_a_port(over_tls(tls), TlsFiles(ca=server.ca)) == b"hello"


# --- who connects looks, too ---------------------------------------------------------


def test_who_connects_refuses_another_host(authority: Authority, server: TlsFiles) -> None:
    """Its certificate may be of the same CA: a node of the job that was taken over."""
    files = authority.files("agent")

    outcome = met_at_a_port(over_tls(ServedTls(server, "gpu1")), files, host="gpu2")

    place = "https://gpu2:7000"
    said = f"the certificate of the coordinator at {place} does not name gpu2"
    assert fault(outcome, files, place) == said


def test_who_connects_refuses_another_ca(server: TlsFiles, tmp_path: Path) -> None:
    files = Authority(tmp_path / "theirs").files()

    outcome = met_at_a_port(over_tls(ServedTls(server, "gpu1")), files)

    assert fault(outcome, files) == (
        f"the certificate of the coordinator at {PLACE} is not signed by the CA {files.ca}"
    )


def test_who_connects_says_what_is_not_spoken(authority: Authority) -> None:
    files = authority.files()

    def refuse(sock: socket.socket) -> None:
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    outcome = met_at_a_port(refuse, files)

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

    outcome = met_at_a_port(over_tls(tls), agent, trust=trust)

    assert f"does not accept the certificate {agent.certificate}" in str(fault(outcome, agent))
