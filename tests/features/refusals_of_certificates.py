"""What ``pliant certs make`` refuses, with the sentence that a user reads.

Owns that table; every row has its command.
"""

from __future__ import annotations

from pathlib import Path

from tests.features.refusal import Refusal


def made(*names: str) -> None:
    """Let files be there that look like those of a CA."""
    Path("certs").mkdir()
    for name in names:
        (Path("certs") / name).touch()


CERTIFICATES = [
    Refusal(
        sentence="'gpu_1' is no host: give its names and addresses, as gpu1,10.0.0.1",
        when="`pliant certs make` is given what no host is called",
        instead="`pliant certs make gpu1,10.0.0.1`",
        command="certs make gpu_1",
    ),
    Refusal(
        sentence="a host whose files are called ca hides its CA; name it otherwise",
        when="a host is called `ca`",
        instead="another of its names first: `ca.lab,ca`",
        command="certs make ca",
    ),
    Refusal(
        sentence="host gpu1 is named twice; give all names of it at once, with ','",
        when="a host stands there twice",
        instead="`pliant certs make gpu1,10.0.0.1`",
        command="certs make gpu1,10.0.0.1 gpu1",
    ),
    Refusal(
        sentence="--days 0 must be between 1 and 3650",
        when="certificates are to be valid for no time, or longer than their CA",
        instead="a number in range",
        command="certs make --days 0 gpu1",
    ),
    Refusal(
        sentence="certs/gpu1.pem is there already; --renew makes new ones for the hosts that are "
        "named",
        when="a host has a certificate or a key",
        instead="`--renew`, or only the hosts that are new",
        command="certs make gpu1 gpu2",
        before=lambda: made("gpu1.pem"),
    ),
    Refusal(
        sentence="certs/ca.pem is there, and certs/ca.key is not; bring it back, or choose --out",
        when="half of a CA is there: hosts with certificates of it would not trust a new one",
        instead="its other half, or `--out DIR` and new certificates for all hosts",
        command="certs make gpu1",
        before=lambda: made("ca.pem"),
    ),
    Refusal(
        sentence="certificates are made with openssl, which is not installed here: install it (apt "
        "install openssl), or run this on another host",
        when="there is no command `openssl`",
        instead="`apt install openssl`; certificates may be made on any machine",
        proof="tests/machine/test_own_ca.py::test_without_openssl_it_is_refused",
    ),
]
