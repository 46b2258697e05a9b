"""What a simulation refuses: files, generators, ways of resizing.

Owns the rows of ``pliant simulate``; each types the command beside the files that it is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.features.refusal import Refusal, Script

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


def line(sentence: str, cells: str, *, when: str, instead: str) -> Refusal:
    """Return the row of a line of a workload."""
    return simulated(
        sentence=f"jobs.csv line 2{sentence}",
        when=when,
        instead=instead,
        before=beside(jobs=f"{JOBS}{cells}\n"),
    )


def simulated(options: str = "", workload: str = "jobs.csv", **row: Any) -> Refusal:
    """Return the row of a simulation."""
    command = f"simulate c.yaml {workload} {options}".strip()
    return Refusal(**{"before": beside(), "command": command, **row})


SACCT = "JobID|Submit|Start|End|AllocTRES\n"
DAY = "2026-10-01T"
ITEM = """\
{"metadata": {"name": "gpt", "creationTimestamp": "2026-10-01T08:00:00Z"},
 "spec": {"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}},
 "status": {"startTime": "2026-10-01T08:10:00Z"}}
"""


def exported(text: str, sentence: str, *, when: str, instead: str) -> Refusal:
    """Return the row of an export; its first line says of what."""
    return simulated(
        sentence=f"jobs.csv{sentence}", when=when, instead=instead, before=beside(jobs=text)
    )


EXPORTED = [
    exported(
        SACCT.replace("Submit", "Eligible"),
        " line 1: the column Submit is missing; export with `sacct --parsable2 -o"
        " JobID,Submit,Start,End,AllocTRES`",
        when="an export of Slurm has not all columns that are needed",
        instead="the command of the sentence",
    ),
    exported(
        "JobID                     Submit               Start\n",
        " line 1 is of sacct without bars; export with `sacct --parsable2`",
        when="an export of Slurm is a table for people",
        instead="the command of the sentence",
    ),
    exported(
        f"{SACCT}7|{DAY}08:00:00\n",
        " line 2 has 2 fields; expected 5, as in line 1",
        when="a line of an export of Slurm has fields too many or too few",
        instead="a line as `sacct --parsable2` prints it; leave out columns that people write into",
    ),
    exported(
        f"{SACCT}7|{DAY}08:00:00|8:10|Unknown|gres/gpu=8\n",
        " line 2: Start '8:10' is no time; expected one such as 2026-10-01T08:00:00, or Unknown",
        when="a time of an export of Slurm is none",
        instead="leave `SLURM_TIME_FORMAT` as it is",
    ),
    exported(
        f"{SACCT}7|Unknown|{DAY}08:00:00|Unknown|gres/gpu=8\n",
        " line 2: Submit is empty; expected a time, such as 2026-10-01T08:00:00",
        when="a job of an export of Slurm was never submitted",
        instead="a time",
    ),
    exported(
        f"{SACCT}7|{DAY}08:00:00|{DAY}08:10:00|{DAY}08:05:00|gres/gpu=8\n",
        " line 2: End 2026-10-01T08:05:00 is before Start 2026-10-01T08:10:00; if the clock was put"
        " back, export with TZ=UTC",
        when="a job of an export of Slurm ends before it begins",
        instead="`TZ=UTC sacct ...`, where no hour comes twice",
    ),
    exported(
        f"{SACCT}7|{DAY}08:00:00|{DAY}08:10:00|Unknown|gres/gpu=900000\n",
        " line 2: 900000 accelerators; at most 100000 can be simulated",
        when="a job of an export has more accelerators than can be simulated",
        instead="fewer",
    ),
    exported(
        f"{SACCT}7|{DAY}08:00:00|{DAY}08:10:00|Unknown|cpu=8\n",
        " has no job that trained on accelerators (left out: 1 jobs without an accelerator)",
        when="an export has no job that can be simulated",
        instead="another partition or a longer time; the sentence says what was left out",
    ),
    exported(
        '{"items": [}\n',
        " line 1 is no JSON: Expecting value; expected `kubectl get jobs -A -o json`",
        when="an export of Kubernetes is no JSON",
        instead="the command of the sentence",
    ),
    exported(
        '{"items": 3}\n',
        ": items is no list; expected `kubectl get jobs -A -o json`",
        when="an export of Kubernetes is no list",
        instead="the command of the sentence",
    ),
    exported(
        '{"items": [{"kind": "Pod"}]}\n',
        ": items[0] is a Pod; expected Jobs, as from `kubectl get jobs -A -o json`",
        when="an export of Kubernetes has something else than Jobs",
        instead="the command of the sentence",
    ),
    exported(
        '{"metadata": []  , "spec": [1]}\n',
        ": items[0]: spec is no mapping; expected `kubectl get jobs -A -o json`",
        when="a field of a Job is of another kind",
        instead="what Kubernetes writes there",
    ),
    exported(
        ITEM.replace('"status": {', '"status": {"conditions": [1], '),
        ": items[0] (default/gpt): conditions is no list of mappings; expected `kubectl get jobs -A"
        " -o json`",
        when="a list of a Job is none",
        instead="what Kubernetes writes there",
    ),
    exported(
        ITEM.replace('gpu": 1', 'gpu": "half"'),
        ": items[0] (default/gpt): limits of nvidia.com/gpu 'half' cannot be read; expected a whole"
        " number",
        when="a number of a Job cannot be read",
        instead="a whole number",
    ),
    exported(
        ITEM.replace("2026-10-01T08:10:00Z", "soon"),
        ": items[0] (default/gpt): startTime 'soon' is no time; expected 2026-10-01T08:00:00Z",
        when="a time of a Job is none",
        instead="a time as Kubernetes writes it",
    ),
    exported(
        ITEM.replace("creationTimestamp", "made"),
        ": items[0] (default/gpt): metadata.creationTimestamp is missing; expected a time",
        when="a Job does not say when it was made",
        instead="what Kubernetes writes there",
    ),
    exported(
        ITEM.replace("T08:10", "T07:10"),
        ": items[0] (default/gpt): it ended before it began, or began before it was made",
        when="the times of a Job are not in their order",
        instead="times in their order",
    ),
    exported(
        ITEM.replace('gpu": 1', 'gpu": 900000'),
        ": items[0] (default/gpt): 900000 accelerators; at most 100000 can be simulated",
        when="a Job has more accelerators than can be simulated",
        instead="fewer",
    ),
]

SIMULATED = [
    *EXPORTED,
    exported(
        "name,arrival_s,work_s,began_s\ngpt,9,60,5\n",
        " line 2: began_s 5 is before arrival_s 9",
        when="a job began before it came",
        instead="a later `began_s`",
    ),
    simulated(
        sentence="jobs.csv is an empty workload; expected name,arrival_s,work_s,devices,min,max,"
        "workers,slots,curve,priority,team,kind,state_gb,step_s,start_s,restart_s,target_s,deadline_s,began_s",
        when="a workload has no line",
        instead="a line of names and one for each job",
        before=beside(jobs="# nothing\n"),
    ),
    simulated(
        sentence="jobs.csv has no job behind line 1; expected one in each line",
        when="a workload has a line of names only",
        instead="a line for each job",
        before=beside(jobs=JOBS),
    ),
    simulated(
        sentence="jobs.csv line 1: unknown column 'device'; did you mean devices?",
        when="a workload names a column that there is not",
        instead="the name that is meant",
        before=beside(jobs="arrival_s,work_s,device\n"),
    ),
    simulated(
        sentence="jobs.csv line 1: columns stand between commas, not semicolons, and numbers have "
        "a point",
        when="a workload is of a spreadsheet whose language writes 1,5",
        instead="commas between columns, and `1.5`",
        before=beside(jobs="arrival_s;work_s\n0;1,5\n"),
    ),
    simulated(
        options="--elastic 0",
        sentence="--elastic 0 must be at least 1",
        when="jobs of no device are to be elastic",
        instead="the size from which jobs are",
    ),
    simulated(
        sentence="jobs.csv line 1: the column work_s is given twice",
        when="a workload names a column twice",
        instead="once",
        before=beside(jobs="arrival_s,work_s,work_s\n"),
    ),
    simulated(
        sentence="jobs.csv line 1: the column work_s is missing; expected a line of names",
        when="a workload does not say when jobs arrive or how long they take",
        instead="`arrival_s` and `work_s`",
        before=beside(jobs="arrival_s\n0\n"),
    ),
    line(
        " has 2 cells; expected 8 cells, for name,arrival_s,work_s,devices,min,max,slots,target_s",
        "gpt,0",
        when="a line has fewer or more cells than names",
        instead="as many",
    ),
    line(
        ": work_s 'soon' cannot be read; expected a number of seconds above 0",
        "gpt,0,soon,,,,,",
        when="a cell cannot be read",
        instead="what the sentence says",
    ),
    line(
        ": work_s is empty; expected a number of seconds above 0",
        "gpt,0,,,,,,",
        when="a job does not say how long it takes",
        instead="seconds",
    ),
    line(
        ": devices 2 is not between min 3 and max 8",
        "gpt,0,60,2,3,8,,",
        when="the sizes of a job contradict each other",
        instead="a number between the two",
    ),
    simulated(
        sentence="jobs.csv line 2: max 7 is no multiple of the 2 workers of a replica",
        when="replicas of a job have several workers, and its sizes are none of them",
        instead="multiples of `workers`",
        before=beside(jobs="arrival_s,work_s,min,max,workers\n0,60,2,7,2\n"),
    ),
    simulated(
        sentence="jobs.csv line 2: job2 can never run: a replica has 2 workers, all on one node,"
        " and no node has more than 1 device",
        when="the workers of a replica do not fit on a node",
        instead="fewer `workers`, or nodes with more devices",
        before=beside(jobs="arrival_s,work_s,workers\n0,60,2\n"),
    ),
    line(
        ": max 8 is above the 4 micro-batches of a step; each replica needs one",
        "gpt,0,60,2,1,8,4,",
        when="a job may have more replicas than slots",
        instead="a smaller `max` or more `slots`",
    ),
    line(
        ": target_s 90 is above work_s 60",
        "gpt,0,60,,,,,90",
        when="the target comes after the end",
        instead="at most `work_s`",
    ),
    simulated(
        sentence="jobs.csv line 3: job a stands in line 2 already",
        when="two jobs have one name",
        instead="another name, or none",
        before=beside(jobs="name,arrival_s,work_s\na,0,1\na,0,1\n"),
    ),
    simulated(
        sentence="jobs.csv line 2: gpt can never run: it needs at least 9 devices, and the pool has"
        " 4",
        when="a job needs more than there ever is",
        instead="a smaller job or a larger cluster",
        before=beside(jobs=f"{JOBS}gpt,0,60,9,,,,\n"),
    ),
    simulated(
        sentence="c.yaml: service chat can never run: it needs at least 5 devices, and the pool has"
        " 4",
        when="inference needs more than there ever is",
        instead="a smaller load or a larger cluster",
        before=beside(
            CLUSTER + "  inference: [{name: chat, load: jobs.csv}]\n", jobs="time_s,devices\n0,5\n"
        ),
        workload="mix:jobs=1",
    ),
    simulated(
        "--capacity all=gone.csv",
        sentence="--capacity all: gone.csv cannot be read: No such file or directory",
        when="`--capacity` or `--load` names a trace that cannot be read",
        instead="the path of a trace, from where the command is typed",
    ),
    simulated(
        sentence="c.yaml: load of service chat: gone.csv cannot be read: No such file or directory",
        when="a cluster's file names a trace that cannot be read",
        instead="the path of a trace, beside that file",
        before=beside(CLUSTER + "  inference: [{name: chat, load: gone.csv}]\n"),
    ),
    simulated(
        workload="mix:jobs=300,seed=1",
        sentence="mix:jobs=300,seed=1: j68 can never run: it needs at least 32 devices, and the"
        " pool has 4",
        when="a generated job needs more than there ever is",
        instead="a larger cluster",
    ),
    simulated(
        sentence="jobs.csv line 2: no node has devices of kind tpu; there are none",
        when="a job wants devices of a kind that no node has",
        instead="a kind of `spec.nodes`",
        before=beside(jobs="arrival_s,work_s,kind\n0,1,tpu\n"),
    ),
    simulated(
        sentence="c.yaml line 3: spec.nodes have 800000 devices between them; at most 100000 can be"
        " simulated",
        when="a cluster is too large",
        instead="fewer nodes",
        before=beside(CLUSTER.replace("count: 4", "count: 100000, devices: 8")),
    ),
    simulated(
        sentence="c.yaml line 3: service chat is of team web, which does not exist; there are"
        " default",
        when="inference is of a team or class that the file does not have",
        instead="one of those",
        before=beside(CLUSTER + "  inference: [{name: chat, load: x.csv, team: web}]\n"),
    ),
    simulated(
        sentence="mix:jobs=3 cannot stand for a trace here; write day: or the path of a trace",
        when="a generator stands where it generates the wrong thing",
        instead="`spot:` for nodes, `day:` for inference",
        before=beside(CLUSTER + "  inference: [{name: chat, load: 'mix:jobs=3'}]\n"),
    ),
    simulated(
        workload="mix:cows=3",
        sentence="mix takes no 'cows'; it takes jobs, days, elastic, seed",
        when="a generator is given something that it does not take",
        instead="one of those",
    ),
    simulated(
        workload="day:seed=1",
        sentence="day:seed=1 generates no jobs; write mix: or the path of a workload",
        when="a generator of something else stands for a workload",
        instead="`mix:`",
    ),
    simulated(
        "--capacity all=spot:days=10000,lossesPerHour=1000",
        sentence="spot: 720000000 nodes would be lost; at most 1000000 can be generated, so give"
        " fewer days, lossesPerHour or burst",
        when="a generated trace would be too long",
        instead="what the sentence says",
    ),
    simulated(
        sentence="c.yaml: the load of service chat changes at 90 s, and begins again at 60 s"
        " already (repeatInSeconds)",
        when="a load is longer than the time after which it is repeated",
        instead="a longer `repeatInSeconds`, or a shorter load",
        before=beside(
            CLUSTER + "  inference: [{name: chat, load: jobs.csv, repeatInSeconds: 60}]\n",
            jobs="time_s,devices\n0,1\n90,2\n",
        ),
        workload="mix:jobs=1",
    ),
    simulated(
        sentence="jobs.csv line 2 is no line of CSV: field larger than field limit (131072)",
        when="a line of a workload cannot be read as CSV",
        instead="a line of CSV",
        before=beside(jobs=JOBS + "x" * 140_000 + "\n"),
    ),
    simulated(
        workload="mix:jobs=0",
        sentence="mix: jobs=0 is not a whole number from 1 to 1e+06",
        when="a number of a generator is out of range",
        instead="a number in range",
    ),
    simulated(
        "--way teleport",
        sentence="'teleport' is no way of resizing; there are in-place, restart, preempt, static,"
        " restart:SECONDS and pause:SECONDS",
        when="`--way` names none",
        instead="one of those",
    ),
    simulated(
        "--way restart:soon",
        sentence="'restart:soon' is no way of resizing; write seconds behind it: restart:60",
        when="`--way` has something else than seconds behind it",
        instead="`restart:60`",
    ),
    simulated(
        "--way static,static",
        sentence="--way names static twice; each is simulated once",
        when="`--way` names one twice",
        instead="each once",
    ),
    simulated(
        "--csv --json",
        sentence="--csv and --json cannot be given together; choose one",
        when="a simulation is to print two forms",
        instead="one of them",
    ),
    simulated(
        workload="mix:jobs=5,jobs=6",
        sentence="mix: jobs is given twice",
        when="a generator is given one thing twice",
        instead="it once",
    ),
    simulated(
        sentence="/dev/zero cannot be read: it has more than 256 MB",
        when="a file that is named has no end",
        instead="a file",
        workload="/dev/zero",
    ),
    simulated(
        "--policy maxReplicas=4",
        sentence="--policy maxReplicas: the sizes of each job stand in the workload",
        when="`--policy` gives all jobs of a simulation one size",
        instead="`min` and `max` of each job",
    ),
    simulated(
        "--capacity spot=spot:burst=2",
        sentence="c.yaml has no nodes spot; there are all",
        when="`--capacity` or `--load` is for what the cluster does not have",
        instead="one of those names",
    ),
    simulated(
        "--capacity x.csv",
        sentence="--capacity 'x.csv' is not NAME=TRACE, such as spot=p3-trace.csv",
        when="`--capacity` or `--load` does not say what it is for",
        instead="the name of the nodes or the service",
    ),
    simulated(
        "--sweep scalingTimeoutInSeconds=30",
        sentence="--sweep 'scalingTimeoutInSeconds=30' is not KEY=VALUE,VALUE,... with two values"
        " or more that differ, such as scalingTimeoutInSeconds=0,30,120",
        when="`--sweep` has nothing to compare",
        instead="two values or more",
    ),
]
