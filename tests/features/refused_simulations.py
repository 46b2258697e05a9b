"""What a simulation refuses: files, generators, ways of resizing.

Owns tables of sentences and what each is said of; the command is typed beside two files.
"""

from __future__ import annotations

from pathlib import Path

from tests.features.refusal import Script, Typed

CLUSTER = """\
apiVersion: pliant.dev/v1alpha1
kind: Cluster
spec:
  nodes: [{name: all, count: 4}]
"""


JOBS = "name,arrival_s,work_s,devices,min,max,slots,target_s\n"


def beside(cluster: str = CLUSTER, jobs: str = f"{JOBS}gpt,0,60,,,,,\n") -> Script:
    """Return what writes the two files of a simulation."""

    def write() -> None:
        Path("c.yaml").write_text(cluster)
        Path("jobs.csv").write_text(jobs)

    return write


def simulate(options: str = "", workload: str = "jobs.csv", before: Script | None = None) -> Typed:
    """Return a simulation that is refused."""
    return Typed(f"simulate c.yaml {workload} {options}".strip(), before=before or beside())


LINES = [
    (
        " has 2 cells; expected 8 cells, for name,arrival_s,work_s,devices,min,max,slots,target_s",
        "gpt,0",
    ),
    (": work_s 'soon' cannot be read; expected a number of seconds above 0", "gpt,0,soon,,,,,"),
    (": work_s is empty; expected a number of seconds above 0", "gpt,0,,,,,,"),
    (": devices 2 is not between min 3 and max 8", "gpt,0,60,2,3,8,,"),
    (": max 8 is above the 4 micro-batches of a step; each replica needs one", "gpt,0,60,2,1,8,4,"),
    (": target_s 90 is above work_s 60", "gpt,0,60,,,,,90"),
]
"""What is said behind the place of a line, and its cells."""

OTHERS: dict[str, Typed] = {
    "jobs.csv line 1 is of sacct: make a workload of it, as `pliant docs"
    " what-would-it-have-saved` shows": simulate(before=beside(jobs="JobID|Submit|Start\n")),
    "jobs.csv line 1: unknown column 'device'; did you mean devices?": simulate(
        before=beside(jobs="arrival_s,work_s,device\n")
    ),
    "jobs.csv line 1: columns stand between commas, not semicolons, and numbers have "
    "a point": simulate(before=beside(jobs="arrival_s;work_s\n0;1,5\n")),
    "jobs.csv line 1: the column work_s is given twice": simulate(
        before=beside(jobs="arrival_s,work_s,work_s\n")
    ),
    "jobs.csv line 2: job2 can never run: a replica has 2 workers, all on one node,"
    " and no node has more than 1 device": simulate(
        before=beside(jobs="arrival_s,work_s,workers\n0,60,2\n")
    ),
    "jobs.csv line 3: job a stands in line 2 already": simulate(
        before=beside(jobs="name,arrival_s,work_s\na,0,1\na,0,1\n")
    ),
    "jobs.csv line 2: gpt can never run: it needs at least 9 devices, and the pool has 4": simulate(
        before=beside(jobs=f"{JOBS}gpt,0,60,9,,,,\n")
    ),
    "c.yaml: capacity of nodes all: gone.csv cannot be read: No such file or directory": simulate(
        before=beside(CLUSTER.replace("4}", "4, capacity: gone.csv}"))
    ),
    "jobs.csv line 2: no node has devices of kind tpu; there are none": simulate(
        before=beside(jobs="arrival_s,work_s,kind\n0,1,tpu\n")
    ),
    "jobs.csv line 2 is no line of CSV: field larger than field limit (131072)": simulate(
        before=beside(jobs=JOBS + "x" * 140_000 + "\n")
    ),
}

COMMANDS = {
    **{
        f"jobs.csv line 2{said}": simulate(before=beside(jobs=f"{JOBS}{cells}\n"))
        for said, cells in LINES
    },
    **OTHERS,
}
