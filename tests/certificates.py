"""Makes certificates: a CA, and what it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pliant.core.values import TlsFiles

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """A CA in a directory of its own; another may have signed it."""

    def __init__(
        self,
        directory: Path,
        *,
        days: tuple[int, int] = (-1, 30),
        issuer: Authority | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = directory / "ca.pem"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ca of {directory.name}")])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = (issuer or self)._made(self._name, self._key, days, None)
        write_certificate(self.ca, made)

    def files(
        self,
        node: str = "node",
        *,
        days: tuple[int, int] = (-1, 30),
        usages: Sequence[x509.ObjectIdentifier] = BOTH_ENDS,
        is_rsa: bool = False,
        names: Sequence[str] = (),
    ) -> TlsFiles:
        """Sign a node's certificate, valid from one day to the other, and write it and its key.

        ``names``: the hosts and addresses that it names, beside what it is called.
        """
        key: PrivateKey = rsa.generate_private_key(65537, 2048) if is_rsa else _new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        certificate, key_file = self.directory / f"{node}.pem", self.directory / f"{node}.key"
        write_certificate(certificate, self._made(name, key, days, usages, names))
        write_key(key_file, key)
        return TlsFiles(ca=str(self.ca), certificate=str(certificate), key=str(key_file))

    def _made(
        self,
        name: x509.Name,
        key: PrivateKey,
        days: tuple[int, int],
        usages: Sequence[x509.ObjectIdentifier] | None,
        names: Sequence[str] = (),
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(usages is None, None), critical=True)
        )
        if usages is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            alternatives = x509.SubjectAlternativeName([*map(_general_name, names)])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_key(path: Path, key: PrivateKey, password: bytes | None = None) -> None:
    form = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
    )


def set_password(path: Path) -> None:
    """Encrypt the key in a file."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    write_key(path, key, b"secret")
