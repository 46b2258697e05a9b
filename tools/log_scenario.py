"""Make a scenario file of a recorded run or pool, as tests play them.

    python -m tools.log_scenario runs/train-gpt incident.txt
    python -m tools.log_scenario ~/.local/state/pliant/pools/default incident.txt

The file was played before it is written, and answers as was recorded.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from tests.support.log_scenario import scenario_of, title_of
from tests.support.pool_scenario import scenario_of_pool
from tools.replay_log import entries, is_pool_log, log_at
from tools.replay_turns import replayed

from pliant.core.errors import ConfigError


def write_scenario(path: Path, file: Path) -> str:
    """Write the file; return what is to be said of it.

    Raises:
        ConfigError: there is no log, no scenario can be made of it, or the file is there already.
    """
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already; name another file for the scenario")
    log = log_at(path)
    steps = replayed(entries(log))
    if (first := next(steps, None)) is None:
        raise ConfigError(f"{log} is empty; no scenario can be made of it")
    title = title_of(log.name, first.place, version("pliant"))
    make = scenario_of_pool if is_pool_log(log) else scenario_of
    found = make(chain([first], steps), title=title)
    with file.open("x", encoding="utf-8") as out:
        out.write(found.text)
    ends = "" if found.until is None else f"; it ends before {found.until}"
    return f"{file}: {found.num_events} events, {found.num_left_out} signs of life left out{ends}"


def main() -> int:
    """Run the command line; exit code 2 if no file is written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="the log of a run or a pool, or its directory")
    parser.add_argument("file", type=Path, help="the scenario file; it must not be there yet")
    arguments = parser.parse_args()
    try:
        print(write_scenario(arguments.log, arguments.file))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
