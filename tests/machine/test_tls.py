"""Nodes that the job's CA has signed talk to each other, and to nobody else."""

from __future__ import annotations

import os
import pty
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.x509 import ObjectIdentifier
from tests.certificates import BOTH_ENDS, Authority, set_password

from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.machine.tls import TlsContexts, exposed_key

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


def test_a_certificate_that_has_expired_is_named(authority: Authority) -> None:
    files = authority.files(days=(-3, -1))

    assert refusal(files) == f"the certificate {files.certificate} has expired, or its CA has"


def test_a_certificate_of_a_ca_that_has_expired_is_named(tmp_path: Path) -> None:
    files = Authority(tmp_path / "old", days=(-3, -1)).files()

    assert refusal(files) == f"the certificate {files.certificate} has expired, or its CA has"


def test_a_certificate_of_tomorrow_is_named(authority: Authority) -> None:
    files = authority.files(days=(1, 3))

    assert refusal(files) == (
        f"the certificate {files.certificate} is not valid yet, or its CA is not; compare the "
        "clocks"
    )


def test_a_certificate_that_the_ca_has_not_signed_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    files = replace(Authority(tmp_path / "theirs").files(), ca=str(authority.ca))

    assert refusal(files) == (
        f"the certificate {files.certificate} is not signed by the CA {authority.ca}"
    )


def test_a_ca_that_was_made_anew_under_its_old_name_is_another(authority: Authority) -> None:
    files = authority.files()
    Authority(authority.directory)

    assert refusal(files) == (
        f"the certificate {files.certificate} is not signed by the CA {authority.ca}"
    )


@pytest.mark.parametrize("usage", BOTH_ENDS)
def test_a_certificate_for_one_end_only_is_named(
    authority: Authority, usage: ObjectIdentifier
) -> None:
    files = authority.files(usages=[usage])

    assert refusal(files) == (
        f"the certificate {files.certificate} is not for both ends of a connection; its "
        "extendedKeyUsage must name serverAuth and clientAuth, or be left out"
    )


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(authority: Authority) -> None:
    files = authority.files()
    set_password(Path(files.key))
    load = (
        "import sys; from pliant.core.tls_files import TlsFiles;"
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
