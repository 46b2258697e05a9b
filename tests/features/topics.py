"""The topics of what is refused, and the page that is made of them and of the source.

Owns which module's sentences belong to which topic, and what to do about them in general.  A new
sentence is on the page by itself: under the topic of its module, or of its room.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tests.features.raised import raised

HEAD = """\
# What is refused

Made by `python -m tools.make_pages` from the sentences in the source; `tests/features/topics.py`
has the topics. {name} stands for a value, and ... for other words.

Under `pliant run`, a refused script ends the job with exit code 2. The sentence comes with the line
of the script. Under `python`, the script ends with the same sentence and the same code, unless it
catches the `ConfigError` or `UsageError`. A refused command ends with exit code 2, too.
"""


class Topic(NamedTuple):
    """A section of the page."""

    title: str
    do: str
    """What to do, in a sentence or two."""
    places: tuple[str, ...]
    """Beginnings of the paths of its modules; the longest one that fits counts."""


TOPICS = (
    Topic(
        "A script that was not written for pliant",
        "Give the model, the optimizer and the dataset to a `pliant.Session`. "
        "[Bring your script](../howto/bring-your-script.md) shows the lines for torchrun, for each "
        "Trainer and for a plain loop.",
        ("engine/worker/",),
    ),
    Topic(
        "Trainers of other libraries",
        "[Keep your trainer](../howto/trainers.md) shows the line to change and what differs; "
        "[options of trainers](trainer-options.md) has an answer for each option.",
        ("integrations/",),
    ),
    Topic(
        "Arguments of a session",
        "Change the argument that the sentence names. [What works](features.md) lists models, "
        "optimizers and schedulers.",
        ("engine/settings", "engine/device/"),
    ),
    Topic(
        "Datasets, loaders and samplers",
        "A session fetches samples by index, in an order that depends on the seed and the epoch "
        "alone. [Bring your script](../howto/bring-your-script.md#what-to-know) shows streams, "
        "batch "
        "samplers and DataLoaders; [prepare data](../howto/prepare-data.md) shows the rest.",
        ("engine/data/", "core/step/"),
    ),
    Topic(
        "Inside the loop",
        "Call `step.backward(loss)` once per micro-batch. Do everything else in the tail of the "
        "step, behind the loop over its micro-batches.",
        ("engine/", "engine/data/slots", "engine/guard/script_calls"),
    ),
    Topic(
        "Buffers and state",
        "Everything that a joining replica needs must be in the model, the optimizer, the "
        "schedulers or `extra_state=`, as plain values, containers, tensors or numpy arrays.",
        ("engine/state/",),
    ),
    Topic(
        "Replicas that differ",
        "Every replica must run the same code with the same seed. Write files and print where "
        "`session.leader` is true; change nothing else there. "
        "[Check your script](../howto/check-your-script.md) finds the place.",
        ("engine/member/", "engine/guard/", "engine/evaluation"),
    ),
    Topic(
        "Replicas of several workers",
        "[Shard a replica](../howto/shard-a-replica.md) says what `pliant.mesh` takes, and what "
        "`fully_shard`, `parallelize_module` and schedules of stages can do.",
        (
            *("engine/sharding/", "engine/several_workers", "engine/data/team_slots"),
            *("engine/member/follower_", "engine/local_tensors"),
            "engine/member/replica_workers",
        ),
    ),
    Topic(
        "Checkpoints",
        "Give each run a place of its own. [Checkpoints](../howto/checkpoints.md) says what is "
        "kept "
        "where, and how to look at it, verify it and export it.",
        (
            *("checkpoint/", "cli/checkpoint_commands", "core/durability"),
            *("engine/member/alone", "engine/state/whole_weights"),
            *("engine/state/saving", "engine/state/training_state"),
        ),
    ),
    Topic(
        "Sizes and the policy",
        "Sizes obey min <= start <= max. [The elastic policy](../explanation/policy.md) has "
        "every field with its "
        "range.",
        ("core/job/", "core/policy/"),
    ),
    Topic(
        "The command line",
        "`pliant COMMAND --help` has every option.",
        ("cli/",),
    ),
    Topic(
        "Files: jobs, pools and clusters",
        "Mend the field or the line that the sentence names. [Run a job](../howto/run-a-job.md) "
        "has a "
        "complete job file.",
        ("spec/", "cli/job_file", "machine/files", "run/job_config"),
    ),
    Topic(
        "Checking a script",
        "[Check your script](../howto/check-your-script.md) has the options.",
        ("cli/check_command", "run/check"),
    ),
    Topic(
        "The directory of a run, and going on",
        "`--out` names a new directory, `--resume` goes on in an old one. "
        "[Survive and resume](../howto/survive-and-resume.md) says which runs can go on.",
        ("run/", "observe/runs", "cli/start"),
    ),
    Topic(
        "Jobs that run",
        "`pliant ls` and `pliant status` show what runs and under which name.",
        (
            *("http/", "observe/", "machine/registry", "cli/job_commands", "cli/run_commands"),
            *("cli/which_job", "cli/dashboard_command", "client", "dashboard/"),
        ),
    ),
    Topic(
        "Several hosts",
        "Type the same command on every host. "
        "[Run on several hosts](../howto/run-on-several-hosts.md) says what each of them needs.",
        (
            *("agent/", "machine/", "core/placement"),
            "cli/several_hosts",
            "cli/torchrun",
            "restart",
        ),
    ),
    Topic(
        "Coordinators and their register",
        "Give each job a `--register`, a `--token-file` and a place to `--join` of its own. "
        "[Run on several hosts](../howto/run-on-several-hosts.md) says where they lie.",
        ("coordinator/", "run/register_location"),
    ),
    Topic(
        "TLS",
        "Every node needs its certificate, its key and the CA in PEM form. "
        "[Encrypt the traffic](../howto/encrypt-the-traffic.md) has the commands.",
        ("machine/tls",),
    ),
    Topic(
        "Kubernetes",
        "[Run on Kubernetes](../howto/run-on-kubernetes.md) shows a job, and says what it needs "
        "there beside what every job file has.",
        ("kube/", "spec/cluster_job"),
    ),
    Topic(
        "Starting a pool",
        "`--devices` names or counts the devices, `--config` has teams and classes. "
        "[Share a pool](../howto/share-a-pool.md) has examples.",
        (*("run/pool_", "core/device_names", "spec/pool", "spec/trace"),),
    ),
    Topic(
        "Claims, teams and quotas",
        "`pliant pool status` names the devices, teams, classes and claims that there are. "
        "[Run in a pool](../howto/run-in-a-pool.md) says what a claim may ask for.",
        (
            "pool/",
            "core/allocation/",
            "cli/pool_commands",
        ),
    ),
    Topic(
        "Pools that users share",
        "The owner of the pool and root may change it; others change their own claims. "
        "[Who may do what](../explanation/security.md) has the rules.",
        ("machine/device_locks", "pool/auth"),
    ),
    Topic(
        "Simulations",
        "[Simulate a cluster](../howto/simulate-a-cluster.md) has the form of clusters, ways and "
        "generators.",
        ("simulate/", "cli/simulate_command", "spec/cluster"),
    ),
    Topic(
        "Workloads",
        "[What would it have saved us](../howto/what-would-it-have-saved.md) has the commands for "
        "Slurm, and the columns of a workload.",
        ("spec/workload",),
    ),
    Topic(
        "The installation",
        "`pip install 'pliant[engine]'` installs what trains.",
        ("recipes/", "machine/named_modules", "cli/help"),
    ),
)


def topic_of(module: str) -> Topic | None:
    """Return the topic of a module, by its path below the package."""
    fitting = [(place, topic) for topic in TOPICS for place in topic.places]
    fitting = [pair for pair in fitting if module.startswith(pair[0])]
    return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None


def page() -> str:
    """Return the page of refusals."""
    said: dict[Topic | None, set[str]] = defaultdict(set)
    for one in raised():
        if one.is_known:
            said[topic_of(one.place)].add(one.shown)
    parts = [HEAD]
    for topic in TOPICS:
        lines = "".join(f"- {quoted(sentence)}\n" for sentence in sorted(said[topic]))
        parts.append(f"## {topic.title}\n\n{topic.do}\n\n{lines}")
    return "\n".join(parts)


def quoted(sentence: str) -> str:
    """Return a sentence as code, which Markdown leaves alone."""
    marks = "``" if "`" in sentence else "`"
    return f"{marks}{sentence}{marks}"
