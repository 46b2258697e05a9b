"""Search larger bounds than the default suite does: ``python -m tests.core.explorer --help``."""

from __future__ import annotations

import argparse
import sys

from tests.core.explorer.cases import Case, run
from tests.core.explorer.world import Faults

from pliant.core.events import DrainRequested, Event, Scaled
from pliant.core.values import ReplicaId


def main() -> int:
    """Search one case and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=2, help="0: from nothing")
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--min", type=int, default=1, dest="min_replicas")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--join", type=int, default=0, help="scale up by so many")
    parser.add_argument("--drain", nargs="*", default=[], help="replicas to drain, such as r1")
    parser.add_argument("--saves", type=int, default=0, help="checkpoints that may be written")
    parser.add_argument("--storage", nargs="*", default=[], help="those there are, such as 1/1")
    for fault in Faults._fields:
        parser.add_argument(f"--{fault}", type=int, default=0)
    parser.add_argument("--max-states", type=int, default=10**9)
    parser.add_argument("--all-orders", action="store_true", help="no partial-order reduction")
    parser.add_argument("--prompt", action="store_true", help="the coordinator hears at once")
    options = parser.parse_args()
    wishes: list[Event] = []
    if options.join:
        wishes.append(Scaled(target=options.members + options.join))
    wishes += [DrainRequested(replica=ReplicaId(r), notice_s=1000.0) for r in options.drain]
    report = run(
        Case(
            members=options.members,
            devices=options.devices,
            min_replicas=options.min_replicas,
            max_replicas=options.devices,
            steps=options.steps,
            wishes=tuple(wishes),
            saves=options.saves,
            storage=tuple(_pair(text) for text in options.storage),
            faults=Faults(**{fault: getattr(options, fault) for fault in Faults._fields}),
            is_eager=not options.all_orders,
            is_prompt=options.prompt,
        ),
        max_states=options.max_states,
    )
    sys.stdout.write(f"{report}\n")
    return 1 if report.violation else 0


def _pair(text: str) -> tuple[int, int]:
    """Read ``committed/lineage``."""
    committed, _, lineage = text.partition("/")
    return int(committed), int(lineage)


if __name__ == "__main__":
    sys.exit(main())
