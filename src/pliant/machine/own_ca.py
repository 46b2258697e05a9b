"""A CA of one's own, in a directory: what it signs, and for how long.

Owns the files of the CA and of the hosts that it has signed for, and how openssl's command makes
them.  They are made aside and put in their places whole; a key is for this user only.  Knows
nothing of what the certificates are used for.

    DIR/ca.pem  ca.key            the CA, made once
        gpu1.pem  gpu1.key ...    of each host: names it and its addresses, and is for both ends
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.files import PRIVATE, make_private_directory

CA = "ca"
"""What the CA's files are called, and no host."""

CA_DAYS = 3650
"""How long a CA is valid; no host longer."""

EARLIER = timedelta(days=2)
"""From how long ago a certificate is valid: hosts' clocks may be behind."""

MOST_LETTERS = 200
"""Of a host's name: a file is called after it."""

LASTS_S = 60.0
"""Longest time that openssl may take for one file."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

_CONFIG = """\
[req]
distinguished_name = subject
prompt = no
[subject]
commonName = {name}
[ca]
default_ca = own
[own]
new_certs_dir = {scratch}
database = {scratch}/index.txt
rand_serial = yes
unique_subject = no
default_md = sha256
policy = policy
x509_extensions = extensions
[policy]
commonName = supplied
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
{extensions}
"""

_OF_CA = """\
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
"""

_OF_HOST = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {names}
"""


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A host and all names and addresses by which others reach it, as a certificate names it."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> NamedHost:
        """Read ``NAME[,NAME...]``.

        Raises:
            ConfigError: one is neither a name nor an address.
        """
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            is_name = len(name) <= MOST_LETTERS and all(map(_NAME.fullmatch, name.split(".")))
            if not (is_name or _is_address(name)):
                raise ConfigError(
                    f"{text!r} is no host: give its names and addresses, as gpu1,10.0.0.1"
                )
        if names[0] == CA:
            raise ConfigError(f"a host whose files are called {CA} hides its CA; name it otherwise")
        return cls(names)

    @property
    def stem(self) -> str:
        """Return what its files are called."""
        return self.names[0].replace(":", "_")  # a name that begins with - would be an option

    @property
    def alternatives(self) -> str:
        """Return its names as openssl wants them."""
        return ", ".join(f"{'IP' if _is_address(one) else 'DNS'}:{one}" for one in self.names)


class OwnCa:
    """The CA of a directory, which is made if it is not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / f"{CA}.pem"
        self.key = directory / f"{CA}.key"

    def make(self, hosts: Sequence[NamedHost], *, days: int, may_replace: bool) -> bool:
        """Make what the hosts need; return whether the CA had to be made, too.

        Raises:
            ConfigError: there are files already, or they cannot be made.
        """
        made = [path for host in hosts for path in self.files_of(host) if path.exists()]
        if made and not may_replace:
            raise ConfigError(
                f"{made[0]} is there already; --renew makes new ones for the hosts that are named"
            )
        if self.certificate.exists() != self.key.exists():
            there, gone = sorted((self.certificate, self.key), key=Path.exists, reverse=True)
            raise ConfigError(
                f"{there} is there, and {gone} is not; bring it back, or choose --out"
            )
        openssl = shutil.which("openssl")
        if openssl is None:
            raise ConfigError(
                "certificates are made with openssl, which is not installed here: install it (apt "
                "install openssl), or run this on another host"
            )
        is_new = not self.key.exists()
        try:
            make_private_directory(self.directory)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=self.directory) as scratch:
                signing = _Signing(openssl, Path(scratch), self)
                if is_new:
                    signing.make(CA, _OF_CA, CA_DAYS, self.certificate, self.key)
                for host in hosts:
                    extensions = _OF_HOST.format(names=host.alternatives)
                    signing.make(host.names[0], extensions, days, *self.files_of(host))
        except OSError as error:
            raise ConfigError(f"{self.directory} cannot be written: {error.strerror}") from None
        return is_new

    def files_of(self, host: NamedHost) -> tuple[Path, Path]:
        """Return the certificate of a host, and its key."""
        return self.directory / f"{host.stem}.pem", self.directory / f"{host.stem}.key"


@dataclass(frozen=True, slots=True)
class _Signing:
    openssl: str
    scratch: Path
    ca: OwnCa

    def make(self, name: str, extensions: str, days: int, certificate: Path, key: Path) -> None:
        """Make a key and a certificate that the CA signs, its own too, and put both in place."""
        config, request = self.scratch / "openssl.cnf", self.scratch / "request"
        new, new_key = self.scratch / "certificate", self.scratch / "key"
        config.write_text(
            _CONFIG.format(name=f"pliant {name}"[:64], scratch=self.scratch, extensions=extensions)
        )
        (self.scratch / "index.txt").write_text("")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self._run("req", "-new", "-config", config, *curve, "-keyout", new_key, "-out", request)
        who: tuple[object, ...] = ("-selfsign", "-keyfile", new_key)
        if key != self.ca.key:
            who = ("-cert", self.ca.certificate.absolute(), "-keyfile", self.ca.key.absolute())
        since = datetime.now(UTC) - EARLIER
        until = since + EARLIER + timedelta(days=days)
        dates = ("-startdate", f"{since:%Y%m%d%H%M%SZ}", "-enddate", f"{until:%Y%m%d%H%M%SZ}")
        words = ("ca", "-batch", "-notext", "-config", config, *who, *dates)
        self._run(*words, "-in", request, "-out", new)
        new_key.chmod(PRIVATE)
        new.chmod(0o644)
        new_key.replace(key)
        new.replace(certificate)

    def _run(self, *words: object) -> None:
        try:
            subprocess.run(  # noqa: S603 - what is typed was looked at
                [self.openssl, *map(str, words)],
                check=True,
                capture_output=True,
                text=True,
                timeout=LASTS_S,
                stdin=subprocess.DEVNULL,
                umask=0o077,
            )
        except subprocess.CalledProcessError as error:
            said = [line for line in error.stderr.splitlines() if line.strip()]
            raise ConfigError(
                f"openssl {words[0]} has failed: {said[-1] if said else ''}"
            ) from None
        except subprocess.TimeoutExpired:
            raise ConfigError(f"openssl {words[0]} took longer than {LASTS_S:g} s") from None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
