"""TensorBoard, MLflow and W&B, each behind the same few calls: ``--log-to KIND:PLACE``.

Owns what each library is asked to do, and how a run is found there again.  Knows nothing of where
the values come from, and of which of them it has already.  The libraries are imported when they are
asked for, and are no dependency.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pliant.core.errors import ConfigError

PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The package of each kind."""

MOST_LETTERS = 500
"""Of why nothing was registered."""

DIGEST = "pliant.digest"
"""Tag of a model's version, by which it is known again."""

SIZE = "pliant/replicas"
"""What the number of replicas is called there."""

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One run at one place; used by one thread.  Whatever it raises, it is asked again later."""

    def begin(self, job: str, known_as: str, last: Mapping[str, int]) -> tuple[str, dict[str, int]]:
        """Open the run, a new one if it is ``known_as`` nothing.

        Args:
            job: its name.
            known_as: what an earlier call returned first.
            last: the newest step that was sent of each value.

        Returns:
            What it is known as, and the newest step that is there of each value, if that can be
            told, else ``last``.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values of a step."""

    def note(self, step: int, name: str, text: str) -> None:
        """Add what happened before a step; each has a name of its own."""

    def flush(self) -> None:
        """Return once all is where it belongs."""

    def close(self, state: str, final: Mapping[str, str]) -> None:
        """Say how the run ended: ``finished``, ``failed``, ``suspended`` ...

        ``final``: of the checkpoint of its last step, if it finished and there is one: its
        ``checkpoint`` (directory or URL), ``digest``, ``step`` and ``run`` (who the run is).
        """


def check_place(where: str) -> None:
    """Refuse what is not ``KIND:PLACE``.

    Raises:
        ConfigError: there is no such kind, or its package is not installed.
    """
    kind, _, place = where.partition(":")
    if kind not in PACKAGES or not place:
        kinds = ", ".join(f"{one}:PLACE" for one in PACKAGES)
        raise ConfigError(f"--log-to {where} must be one of {kinds}")
    if importlib.util.find_spec(PACKAGES[kind]) is None:
        raise ConfigError(f"--log-to {where} needs a package: pip install {PACKAGES[kind]}")


def tracker_of(where: str) -> Tracker:
    """Return what ``KIND:PLACE`` means; takes seconds to import."""
    kind, _, place = where.partition(":")
    made: dict[str, type[TensorBoard | MLflow | WeightsAndBiases]] = {
        "tensorboard": TensorBoard,
        "mlflow": MLflow,
        "wandb": WeightsAndBiases,
    }
    return made[kind](place)


class TensorBoard:
    """Event files in a directory, below it in one of the job's name."""

    def __init__(self, place: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

        self._place = place
        self._events, self._summaries = event_pb2, summary_pb2
        self._tensors, self._types = tensor_pb2, types_pb2
        self._writer: Any = None

    def begin(self, job: str, known_as: str, last: Mapping[str, int]) -> tuple[str, dict[str, int]]:
        """Open a new file; look what earlier ones have."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        place, there = known_as or str(Path(self._place) / job), {}
        if known_as:
            known = EventAccumulator(place, size_guidance={"scalars": 1})  # the newest of each
            known.Reload()
            there = {tag: known.Scalars(tag)[-1].step for tag in known.Tags()["scalars"]}
        Path(place).mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(place)
        return place, {**last, **there}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        made = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
        ]
        self._add(step, summary=self._summaries.Summary(value=made))

    def note(self, step: int, name: str, text: str) -> None:
        """Add a text."""
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        made = self._summaries.Summary.Value(
            tag="pliant/resizes",
            metadata=self._summaries.SummaryMetadata(plugin_data=plugin),
            tensor=self._tensors.TensorProto(
                dtype=self._types.DT_STRING, string_val=[text.encode()]
            ),
        )
        self._add(step, summary=self._summaries.Summary(value=[made]))

    def _add(self, step: int, **what: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **what))

    def flush(self) -> None:
        """Write to the file."""
        self._writer.flush()

    def close(self, state: str, final: Mapping[str, str]) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """A run of an experiment that has the job's name, at a tracking server or in a directory."""

    ENDS = {"finished": "FINISHED", "failed": "FAILED", "lost": "FAILED"}  # noqa: RUF012
    MOST = 1000
    """Metrics of one request."""

    def __init__(self, place: str) -> None:
        import mlflow

        self._mlflow = mlflow
        self._client = mlflow.MlflowClient(place)
        self._run = self._job = ""
        self._waiting: list[Any] = []

    def begin(self, job: str, known_as: str, last: Mapping[str, int]) -> tuple[str, dict[str, int]]:
        """Go on with the run, or make one; ask what is there."""
        client = self._client
        self._job = job
        self._waiting.clear()
        if not known_as:
            found = client.get_experiment_by_name(job)
            experiment = client.create_experiment(job) if found is None else found.experiment_id
            self._run = client.create_run(experiment, run_name=job).info.run_id
            return self._run, {}
        self._run = known_as
        client.update_run(known_as, status="RUNNING")
        names = client.get_run(known_as).data.metrics
        there = {
            name: max(one.step for one in client.get_metric_history(known_as, name))
            for name in names
        }
        return known_as, {**last, **there}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add metrics, with the next flush."""
        now_ms, make = int(time.time() * 1000), self._mlflow.entities.Metric
        self._waiting += [make(name, value, now_ms, step) for name, value in values.items()]

    def note(self, step: int, name: str, text: str) -> None:
        """Set a tag."""
        self._client.set_tag(self._run, f"pliant.resize.{name}", f"step {step}: {text}")

    def flush(self) -> None:
        """Send what waits."""
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[: self.MOST])
            del self._waiting[: self.MOST]

    def close(self, state: str, final: Mapping[str, str]) -> None:
        """Register the last checkpoint as a version of the job's model, and end the run."""
        tags = {f"pliant.{name}": value for name, value in final.items()}
        for name, value in tags.items():
            self._client.set_tag(self._run, name, value)
        if final:
            try:
                self._register(final["checkpoint"], tags)
            except self._mlflow.exceptions.MlflowException as error:
                _log.warning("the model registry took no checkpoint: %s", error)
                self._client.set_tag(self._run, "pliant.not_registered", str(error)[:MOST_LETTERS])
        self._client.set_terminated(self._run, self.ENDS.get(state, "KILLED"))

    def _register(self, place: str, tags: Mapping[str, str]) -> None:
        """Make a version of the model, unless there is one of this checkpoint."""
        client, name = self._client, self._job
        if not client.search_registered_models(f"name='{name}'"):
            client.create_registered_model(name)
        known = client.search_model_versions(f"name='{name}'")
        if not any(one.tags.get(DIGEST) == tags[DIGEST] for one in known):
            client.create_model_version(name, source=place, run_id=self._run, tags=dict(tags))


class WeightsAndBiases:
    """A run that is kept in a directory, for ``wandb sync``; each life of the job appends to it."""

    def __init__(self, place: str) -> None:
        import wandb

        self._wandb = wandb
        self._place = place
        self._run: Any = None

    def begin(self, job: str, known_as: str, last: Mapping[str, int]) -> tuple[str, dict[str, int]]:
        """Begin a part of the run."""
        Path(self._place).mkdir(parents=True, exist_ok=True)
        self._run = self._wandb.init(
            project="pliant",
            name=job,
            id=known_as or None,
            resume="allow",
            mode="offline",
            dir=self._place,
        )
        return str(self._run.id), dict(last)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values."""
        self._run.log(dict(values), step=step)

    def note(self, step: int, name: str, text: str) -> None:
        """Keep it in the summary."""
        self._run.summary[f"pliant.resize.{name}"] = f"step {step}: {text}"

    def flush(self) -> None:
        """Nothing: its own process writes."""

    def close(self, state: str, final: Mapping[str, str]) -> None:
        """End this part."""
        self._run.finish(exit_code=0 if state == "finished" else 1)
