"""What openssl makes can be used at once, is for this user only, and is never lost by accident."""

from __future__ import annotations

import shutil
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from pliant.core.errors import ConfigError
from pliant.core.values import TlsFiles
from pliant.machine.own_ca import NamedHost, OwnCa
from pliant.machine.tls import ServedTls, TlsContexts, client_context, exposed_key

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl command"
)
HOSTS = [NamedHost.of("gpu1,10.0.0.1,fd00::1"), NamedHost.of("gpu2.lab")]


def made(directory: Path, *, days: int = 30, may_replace: bool = False) -> list[TlsFiles]:
    ca = OwnCa(directory)
    ca.make(HOSTS, days=days, may_replace=may_replace)
    return [
        TlsFiles(ca=str(ca.certificate), certificate=str(certificate), key=str(key))
        for certificate, key in map(ca.files_of, HOSTS)
    ]


@needs_openssl
def test_hosts_have_what_both_ends_of_all_connections_need(tmp_path: Path) -> None:
    one, other = made(tmp_path / "certs")

    for name in ("gpu1", "10.0.0.1", "fd00::1"):
        ServedTls(one, name)
    ServedTls(other, "gpu2.lab")
    with pytest.raises(ConfigError, match="does not name gpu1"):
        ServedTls(other, "gpu1")
    for files in (one, other):
        TlsContexts.of(files)
        client_context(files)
        assert exposed_key(files) is None


@needs_openssl
def test_it_keeps_to_the_rules_of_other_programs(tmp_path: Path) -> None:
    """Python 3.13, browsers and others look at more than OpenSSL itself."""
    one, _ = made(tmp_path)
    strict = ssl.create_default_context(cafile=one.ca)
    strict.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = ServedTls(TlsFiles(certificate=one.certificate, key=one.key), "gpu1").context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = strict.wrap_bio(to_client, to_server, server_hostname="gpu1")
    ends = (client, server.wrap_bio(to_server, to_client, server_side=True))

    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue

    assert (client.version(), client.getpeercert() is not None) == ("TLSv1.3", True)


@needs_openssl
def test_only_this_user_can_read_keys(tmp_path: Path) -> None:
    made(tmp_path / "certs")

    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "certs").iterdir()}

    assert modes == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "gpu1.pem": 0o644,
        "gpu1.key": 0o600,
        "gpu2.lab.pem": 0o644,
        "gpu2.lab.key": 0o600,
    }
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


@needs_openssl
def test_a_host_whose_clock_is_behind_takes_it_as_well(tmp_path: Path) -> None:
    one, _ = made(tmp_path, days=7)
    now = datetime.now(UTC)

    certificate = x509.load_pem_x509_certificate(Path(one.certificate).read_bytes())

    ca = x509.load_pem_x509_certificate(Path(one.ca).read_bytes())
    assert ca.not_valid_after_utc - now > timedelta(days=3600)  # else nothing could be renewed
    assert certificate.not_valid_before_utc < now - timedelta(days=1)
    assert timedelta(days=6, hours=23) < certificate.not_valid_after_utc - now < timedelta(days=8)


@needs_openssl
def test_nothing_is_replaced_without_being_told(tmp_path: Path) -> None:
    made(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(ConfigError, match=r"gpu1\.pem is there already; --renew makes new ones"):
        made(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@needs_openssl
def test_renewed_files_are_of_the_same_ca(tmp_path: Path) -> None:
    before, _ = made(tmp_path)
    kept, ca = Path(before.certificate).read_bytes(), Path(before.ca).read_bytes()

    after, _ = made(tmp_path, may_replace=True)

    assert Path(after.certificate).read_bytes() != kept
    assert Path(after.ca).read_bytes() == ca
    TlsContexts.of(after)


@needs_openssl
@pytest.mark.parametrize("gone", ["ca.key", "ca.pem"])
def test_a_ca_of_which_half_is_gone_is_not_made_anew(tmp_path: Path, gone: str) -> None:
    made(tmp_path)
    (tmp_path / gone).unlink()

    with pytest.raises(ConfigError, match=f"is there, and .*{gone} is not; bring it back"):
        made(tmp_path, may_replace=True)


def test_without_openssl_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(ConfigError, match="which is not installed here"):
        made(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu1,", "-x", "gpu_1", "gpu 1", "gpu1/x", "../x", "*.lab", "gpu1,ca\nx", "a..b"),
        ".".join(["a" * 60] * 5),
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no host: give its names and addresses"):
        NamedHost.of(text)


def test_files_of_an_address_do_not_look_like_options() -> None:
    files = OwnCa(Path("certs")).files_of(NamedHost.of("::1"))

    assert [path.name for path in files] == ["__1.pem", "__1.key"]


def test_a_host_is_not_called_like_the_ca() -> None:
    with pytest.raises(ConfigError, match="hides its CA"):
        NamedHost.of("ca,10.0.0.1")
