"""What durable state costs, beside PyTorch's own: ``python -m benchmarks.checkpoint``.

Owns the cases, the jobs of each side and the page.  What a worker does is in ``checkpoint_course``,
the arithmetic in ``checkpoint_figures``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness, pliant_job, torchrun
from benchmarks.checkpoint_figures import FIRST, Turn, figures_of, turn_of
from benchmarks.harness import Page
from benchmarks.turns import Record, Turns
from pliant.observe.reading import read

SIDES = (FIRST, "dcp.save", "dcp.async_save")
BUCKET = "benchmark"

LIMIT_S = 900.0
"""Longest turn, or start, of one side."""

BUFFERS_BYTES = {"local": 64e6, "s3": 190e6}
"""What docs/howto/survive-and-resume.md allows a replica beside its share while it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One size of the model, and how it is trained here."""

    state_bytes: float
    """Parameters and both moments."""

    slots: int
    micro_batch: int
    length: int
    every: int
    """Steps from one save to the next."""

    is_crowded: bool
    """The sides do not fit into memory together: they run one after the other."""

    replicas: tuple[int, ...]


MODELS = {
    "10M": Model(
        state_bytes=9_641_472 * 12,
        slots=4,
        micro_batch=2,
        length=32,
        every=3,
        is_crowded=False,
        replicas=(1, 2, 4),
    ),
    "300M": Model(
        state_bytes=302_966_784 * 12,
        slots=1,
        micro_batch=1,
        length=8,
        every=6,
        is_crowded=True,
        replicas=(1,),
    ),
}

METHOD = """\
Byte-level GPT with AdamW, fp32, clipping at 1.0, one thread per worker; the state is parameters and
both moments. {models}. *pliant*: a job of `pliant run` with
`Session(checkpoint=pliant.Checkpoint(place, every="Nsteps", keep=1))`. *dcp.save* and
*dcp.async_save*: DDP under torchrun, accumulating the same micro-batches, saving what
`get_state_dict` returns as often; `async_save` with a gloo group of its own. S3 is a moto server on
loopback, a process of its own (`benchmarks/s3_server.py`). {alive} All processes of a side but the
one whose turn it is rest in a blocking read.

A turn has two saves. After the first (*nothing beside it*) training rests until the checkpoint is
durable; after the second steps go on. {blocks} blocks of one turn per side. *stall*: time in which
the training thread is blocked, of the slowest rank: `Saver.save`; `get_state_dict` and `save` or
`async_save`. *copy in the stall*: `Copier.copy` within. *save*: from the snapshot until it is
durable (for pliant the event `saved`; else the call's begin until its return, or its future's
result). *CPU time*: of all threads of all workers from the begin of the still save until it is
durable and, for pliant, older ones are removed; not of the S3 server. *restore*: `Saver.restore` of
one replica, digests verified, and `dcp.load` in place on all ranks, which verifies nothing; both
read what was just written, from the page cache where it is a file. Steps count as *while a save is
written* if they began before it was durable; time lost is their sum beyond as many quiet ones.
*extra memory*: high-water mark of a worker's resident memory in a turn, beyond that of its steps
before the first save (`/proc/self/clear_refs`); the limit is state / replicas + 64 MB, or
190 MB for S3. glibc keeps freed memory on all sides. A ratio is of one block."""


@contextlib.contextmanager
def storage(kind: str, folder: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield where checkpoints go, and the environment that is needed to get there."""
    if kind == "local":
        yield str(folder / "kept"), {}
        return
    port = torchrun.free_port()
    command = [sys.executable, "-m", "benchmarks.s3_server", "-H", "127.0.0.1", "-p", str(port)]
    with harness.process(command, env=os.environ, output=folder / "moto.txt"):
        endpoint = f"http://127.0.0.1:{port}"
        harness.await_true(
            lambda: _has_bucket(endpoint), timeout_s=60, what=f"a bucket at {endpoint}"
        )
        yield f"s3://{BUCKET}", {"AWS_ENDPOINT_URL": endpoint, **_KEYS}


_KEYS = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": "us-east-1",
    "FSSPEC_S3": '{"config_kwargs": {"read_timeout": 600}}',
}
"""The server may take more than the default minute to put together an object of gigabytes, and who
asks again then is answered that there is no such upload."""


def _has_bucket(endpoint: str) -> bool:
    """Make the bucket; whether that was possible yet."""
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration; its sides are alive together if they fit."""

    params: str
    size: int
    storage: str

    @property
    def name(self) -> str:
        """How the case is called in the table."""
        return f"{self.params} W={self.size} {self.storage}"


@contextlib.contextmanager
def side_job(
    side: str, case: Case, folder: Path, place: str, env: Mapping[str, str]
) -> Iterator[None]:
    """Start a side's job; end it with all its processes on the way out."""
    model, own = MODELS[case.params], folder / side
    arguments = [
        *("--side", side, "--turns", str(folder / "turns"), "--place", f"{place}/{side}"),
        *("--params", case.params, "--every", str(model.every), "--slots", str(model.slots)),
        *("--micro-batch", str(model.micro_batch), "--length", str(model.length)),
    ]
    if side == FIRST:
        script = [str(harness.ROOT / "benchmarks" / "checkpoint_pliant.py"), *arguments]
        with pliant_job.running(
            own, script, least=case.size, start=case.size, most=case.size, name="kept", more=env
        ):
            yield
        return
    command = [
        *torchrun.LAUNCHER,
        *("--standalone", f"--nproc-per-node={case.size}"),
        *(str(harness.ROOT / "benchmarks" / "checkpoint_dcp.py"), *arguments),
    ]
    with harness.process(command, env=harness.environment(**env), output=own / "output.txt"):
        yield


@dataclass(slots=True, kw_only=True)
class Measured:
    """What the sides of a case handed in."""

    turns: dict[str, list[Turn]]
    restores_s: dict[str, list[float]]


def measure(case: Case, sides: Sequence[str], blocks: int) -> Measured:
    """Run one case to its end."""
    groups = [[side] for side in sides] if MODELS[case.params].is_crowded else [list(sides)]
    measured = Measured(turns={}, restores_s={})
    for group in groups:
        with (
            tempfile.TemporaryDirectory(prefix="pliant-checkpoint-") as name,
            storage(case.storage, Path(name)) as (place, env),
        ):
            _measure_group(case, group, blocks, Path(name), place, env, measured)
    return measured


def _measure_group(
    case: Case,
    sides: Sequence[str],
    blocks: int,
    folder: Path,
    place: str,
    env: Mapping[str, str],
    measured: Measured,
) -> None:
    """Let sides that are alive together take turns, and then restore in turn."""
    turns = Turns(folder / "turns")
    try:
        with contextlib.ExitStack() as jobs:
            for side in sides:
                jobs.enter_context(side_job(side, case, folder, place, env))
            for side in sides:
                turns.admit(side, case.size, timeout_s=LIMIT_S)
            handed: dict[str, list[tuple[list[Record], list[Record]]]] = {s: [] for s in sides}
            for _ in range(blocks):
                for side in sides:
                    handed[side].append((turns.call(side, "go"), turns.call(side, "go")))
            for _ in range(blocks):
                for side in sides:
                    told = turns.call(side, "restore")
                    measured.restores_s.setdefault(side, []).append(
                        max(record["restore_s"] for record in told)
                    )
            log = folder / FIRST / "run" / "events.jsonl"
            for side in sides:
                durable_s = saved_s(log) if side == FIRST else None
                measured.turns[side] = [
                    turn_of(still, whole, durable_s=durable_s) for still, whole in handed[side]
                ]
    except (TimeoutError, RuntimeError) as error:
        said = "\n".join(path.read_text()[-3000:] for path in folder.glob("*/output.txt"))
        raise RuntimeError(f"{case.name}: {error}\n{said}") from error
    finally:
        turns.close()


def saved_s(log: Path) -> dict[int, float]:
    """Return how long each save of pliant took, by committed steps."""
    return {
        record["committed"]: record["seconds"] for record in read(log) if record["kind"] == "saved"
    }


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--params", choices=list(MODELS), default="10M")
    parser.add_argument("--replicas", type=int, nargs="+", help="1 2 4 (10M) or 1 (300M)")
    parser.add_argument("--storage", choices=["local", "s3"], nargs="+", default=["local", "s3"])
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=list(SIDES))
    parser.add_argument("--blocks", type=int, default=5, help="turns of each side")
    parser.add_argument("--no-page", action="store_true", help="print the table only")
    chosen = parser.parse_args()
    chosen.replicas = chosen.replicas or MODELS[chosen.params].replicas
    return chosen


def main() -> None:
    """Measure every case and write the page."""
    chosen = options()
    model = MODELS[chosen.params]
    before = harness.load()
    figures = []
    for kind in chosen.storage:
        for size in chosen.replicas:
            case = Case(params=chosen.params, size=size, storage=kind)
            measured = measure(case, chosen.sides, chosen.blocks)
            rows = list(
                figures_of(
                    case.name,
                    measured.turns,
                    measured.restores_s,
                    claim_bytes=model.state_bytes / size + BUFFERS_BYTES[case.storage],
                )
            )
            print(harness.table(rows), flush=True)
            figures += rows
    page = Page(
        theme="_".join(["checkpoint", chosen.params, *chosen.storage]),
        summary="What making a run durable costs it, and how long reading it back takes.",
        method=METHOD.format(
            blocks=chosen.blocks,
            models=(
                f"{chosen.params} parameters: {model.state_bytes / 1e6:.0f} MB, K={model.slots} "
                f"micro-batches of {model.micro_batch} samples x {model.length} tokens, a save "
                f"every {model.every} steps"
            ),
            alive=(
                "The sides do not fit into memory together and run one after the other."
                if model.is_crowded
                else "The jobs of all sides are alive together and take turns."
            ),
        ),
        figures=tuple(figures),
        command=harness.command_line("checkpoint"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
