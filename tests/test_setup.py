"""The set-up installs the tested versions, or another torch with whatever that needs."""

from __future__ import annotations

from tools import setup


def test_another_torch_takes_its_companions_with_it() -> None:
    lines = setup.constraints_with("2.11.0").splitlines()

    assert "torch==2.11.0" in lines
    assert not [each for each in lines if each.startswith(("nvidia-", "triton=", "torchvision="))]
    assert set(lines) - {"torch==2.11.0"} < set(setup.CONSTRAINTS.read_text().splitlines())


def test_the_tested_torch_is_not_older_than_what_users_may_have() -> None:
    project = (setup.ROOT / "pyproject.toml").read_text()
    tested = next(
        each for each in setup.CONSTRAINTS.read_text().splitlines() if each.startswith("torch==")
    )

    assert '"torch>=2.11"' in project
    assert tested == "torch==2.15.0"
