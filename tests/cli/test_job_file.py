"""A job file means what it says beside it, from whatever directory it is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.cli.test_start import configs_of
from tests.cli.test_start import options as tls_options

from pliant.cli.job_file import WhatToRun, read_command
from pliant.cli.main import code_of
from pliant.core.errors import ConfigError

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: from-file}
spec:
  command: [src/train.py, --data, data]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a job and its script; the test is typed in another one."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "src").mkdir(parents=True)
    (project / "src" / "train.py").touch()
    (project / "job.yaml").write_text(JOB)
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(elsewhere)
    for name in [name for name in os.environ if name.startswith("PLIANT_")]:
        monkeypatch.delenv(name)
    return project


def test_a_script_keeps_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()

    what = read_command(str(script), ["--steps", "5", "--min", "3"])

    assert what == WhatToRun(words=[str(script), "--steps", "5", "--min", "3"])


def test_a_module_is_run_by_its_name_beside_the_job_file_too(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "job.yaml").write_text(JOB.replace("src/train.py", "-m, src.train"))

    assert read_command("../project/job.yaml", []).words == ["-m", "src.train", "--data", "data"]
    with pytest.raises(ConfigError, match=r"^there is no module src\.train here, nor is it"):
        read_command("-m", ["src.train"])
    monkeypatch.chdir(project)
    assert read_command("-m", ["src.train", "-5"]).words == ["-m", "src.train", "-5"]
    (project / "src" / "train.py").unlink()
    with pytest.raises(ConfigError, match=r"there is no module src\.train here"):
        read_command("job.yaml", [])


def test_a_job_file_names_its_command(project: Path) -> None:
    what = read_command("../project/job.yaml", [])

    assert what.words == ["src/train.py", "--data", "data"]
    assert what.directory is not None
    assert what.directory.resolve() == project
    with pytest.raises(ConfigError, match=r"put --steps 3 into spec\.command"):
        read_command("../project/job.yaml", ["--steps", "3"])


def test_what_is_not_there_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src" / "train.py").unlink()
    with pytest.raises(
        ConfigError, match=r"script src/train\.py does not exist in .*, where job\."
    ):
        read_command("../project/job.yaml", [])
    monkeypatch.chdir(project)
    with pytest.raises(ConfigError, match=r"the script src/train\.py does not exist$"):
        read_command("job.yaml", [])
    with pytest.raises(ConfigError, match=r"the script nowhere\.py does not exist"):
        read_command("nowhere.py", [])
    with pytest.raises(ConfigError, match=r"is a directory; name a script or a job file"):
        read_command(str(tmp_path), [])
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        read_command("nowhere.yaml", [])


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[Any, Path]:
    """Return what a command would have run, and in which directory."""
    seen = configs_of(monkeypatch)
    assert code_of(arguments) == 0
    return seen[-1], Path.cwd()


@pytest.mark.parametrize("command", [["run"], ["coordinator", "--port", "7000"]])
def test_the_script_and_the_places_it_names_are_relative_to_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    config, directory = ran(monkeypatch, *command, "../project/job.yaml")

    assert config.argv == ("src/train.py", "--data", "data")
    assert directory == project  # its checkpoints and data, too
    assert config.work().cwd == str(project)
    assert config.document()["cwd"] == str(project)


def test_where_its_files_go_is_relative_to_where_that_is_typed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    Path("init.pt").touch()

    config, _ = ran(monkeypatch, "run", "--out", "out", "--init", "init.pt", "../project/job.yaml")
    assert (config.out, config.init) == (here / "out", here / "init.pt")

    monkeypatch.chdir(here)
    monkeypatch.setenv("PLIANT_OUT", "other")
    assert ran(monkeypatch, "run", "../project/job.yaml")[0].out == here / "other"

    monkeypatch.chdir(here)
    monkeypatch.delenv("PLIANT_OUT")
    assert ran(monkeypatch, "run", "../project/job.yaml")[0].out == here / "runs" / "from-file"


def test_files_of_tls_are_relative_to_the_file_or_to_where_they_are_typed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    for directory in (project / "tls", here / "tls"):
        made = Authority(directory).files()
    ca, certificate, key = (Path(path).name for path in (made.ca, made.certificate, made.key))
    with (project / "job.yaml").open("a") as file:
        file.write(f"  tls: {{ca: tls/{ca}, certificate: tls/{certificate}, key: tls/{key}}}\n")

    config, _ = ran(monkeypatch, "run", "../project/job.yaml")
    assert Path(config.tls.ca).resolve() == project / "tls" / ca
    assert Path(config.tls.key).resolve() == project / "tls" / key

    monkeypatch.chdir(here)
    relative = type(made)(ca=f"tls/{ca}", certificate=f"tls/{certificate}", key=f"tls/{key}")
    config, _ = ran(monkeypatch, "run", *tls_options(relative), "../project/job.yaml")
    assert config.tls.certificate == str(here / "tls" / certificate)
