"""Assembly: what does the work of one session, put together and taken apart.

Owns who is made of what, in which order things open and close, and the facts that a job learns of
its script.  Must not know how any of them does its work, nor what the script sees.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.core.step import batching
from pliant.core.text import counted
from pliant.core.values import CHECKPOINT_PLACE, FromCheckpoint
from pliant.engine import identity, randomness
from pliant.engine import several_workers as workers
from pliant.engine.data import loading
from pliant.engine.data.draws import Draws
from pliant.engine.data.from_loader import DataArguments
from pliant.engine.data.ledger import Ledger
from pliant.engine.data.loading import Schedule
from pliant.engine.data.slots import Slots, extras_width
from pliant.engine.data.team_slots import TeamSlots
from pliant.engine.device import here, host
from pliant.engine.device.deterministic import Deterministic
from pliant.engine.device.kernel_watch import KernelWatch
from pliant.engine.guard import files
from pliant.engine.guard.base import Guards
from pliant.engine.guard.comparison import StateComparison
from pliant.engine.guard.differences import DatasetAttributes, Differences
from pliant.engine.guard.files import Inputs
from pliant.engine.guard.loss_graph import LossGraph
from pliant.engine.guard.script_calls import OtherLoaders, ScriptCalls
from pliant.engine.guard.script_variables import ScriptVariables
from pliant.engine.local_tensors import local_of
from pliant.engine.member.alone import Alone
from pliant.engine.member.checkpoint_channel import (
    CoordinatorCheckpointChannel,
    FollowerCheckpointChannel,
    LocalCheckpointChannel,
)
from pliant.engine.member.elastic import ElasticMembership
from pliant.engine.member.followers import NO_FOLLOWERS
from pliant.engine.member.formed import window_size_for
from pliant.engine.member.lead_membership import LeadMembership
from pliant.engine.member.membership_port import WorkerMembership
from pliant.engine.member.runtime import ProtocolRuntime
from pliant.engine.plain_state import PlainState
from pliant.engine.recording import QuietPrinter, Recorder
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import Layout
from pliant.engine.run_facts import facts_alone, facts_of
from pliant.engine.settings import SessionSettings, UserObjects
from pliant.engine.sharding.device_mesh import coordinates, mesh_identity, stages_group
from pliant.engine.sharding.fsdp import FsdpSettings
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.buffers import BufferRules
from pliant.engine.state.durable import Durability
from pliant.engine.state.optimizer_state import with_nested
from pliant.engine.state.saving import Saver
from pliant.engine.state.training_state import State
from pliant.engine.state.whole_weights import WeightsFile, take_initial_weights
from pliant.engine.step_log import StepLogs
from pliant.engine.training import Training
from pliant.engine.update import Update
from pliant.engine.worker.bootstrap import (
    WorkerContext,
    end_for_device,
    from_checkpoint,
    kernel_limit_s,
)
from pliant.engine.worker.reporter import Printer, Reporter, WireReporter
from pliant.machine import run_files
from pliant.wire.messages import Planned

NOTEWORTHY = 0.05
"""Part of the machine's memory from which on the sums of gradients are worth a line."""


class Assembly:
    """Of one session; ``open`` and ``close``, each once."""

    def __init__(
        self,
        objects: UserObjects,
        settings: SessionSettings,
        context: WorkerContext | None,
        *,
        data: DataArguments,
        buffer_rules: Mapping[str, str],
        checkpoint: Durability | None,
        recorder: Recorder | None = None,
    ) -> None:
        """Make them; no process or thread starts yet."""
        self._objects = objects
        self._settings = settings
        self._context = context
        self._is_durable = checkpoint is not None
        if (record := files.here()) is not None:
            record.leave_out(getattr(checkpoint, "path", ""))
        self._data, dataset = data, data.dataset
        self._deterministic = Deterministic()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(settings.threads)  # before a sampler draws
        self.schedule = _schedule(data, settings)
        objects.make_schedulers(settings, self.schedule.steps_per_epoch)
        parameters = dict(objects.model.named_parameters())
        self.buffers = BufferRules(objects.model, buffer_rules, settings.num_slots)
        workers.check_possible(
            context,
            objects,
            has_local=bool(self.buffers.local),
        )
        self._stages = Stages(stages_group())
        workers.check_stages(self._stages, objects, is_durable=self._is_durable)
        layout = Layout.of(
            ((name, local_of(parameter)) for name, parameter in parameters.items()),
            buffers=objects.model.named_buffers(),
            extras=extras_width(len(parameters), self.buffers),
        )
        self._shape = workers.shape_of(context, settings, layout)
        self.state = _state(objects, self.buffers)
        self.state.check()
        attributes = DatasetAttributes(dataset, is_copied=settings.num_workers > 0)
        if not settings.num_workers:  # else the first loader process does it
            with attributes.fetching():
                loading.warn_if_random(dataset, settings.seed)
        if context is not None and (path := context.assignment.work.init) is not None:
            take_initial_weights(Path(path), self.state, self._stages)
        self._num_workers = workers.num_workers(context)
        self._lost: threading.Event | None = None
        self._samples: Mapping[int, str] = {}
        self._sums = GradientSums(parameters, layout, is_shared=self._num_workers > 1)
        self._loader = loading.SlotLoader(
            dataset,
            self.schedule,
            num_slots=settings.num_slots,
            collate_fn=data.collate_fn,
            num_workers=settings.num_workers,
            prefetch_factor=data.prefetch_factor,
            timeout_s=data.timeout_s,
            worker_init_fn=data.worker_init_fn,
            is_compared=context is not None or self._is_durable,
        )
        self._ledger = Ledger(_ledger_path(context), has_commits=not workers.is_follower(context))
        alone = Printer if recorder is None else QuietPrinter
        self.reporter: Reporter = alone() if context is None else WireReporter(context)
        variables = _variables(objects, dataset)
        self._differences = Differences(
            attributes,
            objects.model,
            _refuse
            if context is not None and context.assignment.work.strict
            else partial(self.reporter.noted, lasting=True),
            variables,
            self.schedule.steps_per_epoch,
        )
        self._saver = Saver(
            self.state,
            checkpoint,
            self._pack,
            worker=0 if context is None else context.assignment.place,
            num_workers=self._num_workers,
            coordinates=coordinates(),
            stages=self._stages,
        )
        self.update = Update(
            parameters=parameters,
            layout=layout,
            optimizers=objects.optimizers,
            optimizer_states=self.state.optimizer_states,
            schedulers=objects.schedulers,
            plateau=objects.plateau,
            scaler=objects.scaler,
            max_grad_norm=settings.max_grad_norm,
            steps_per_schedule=(
                self.schedule.steps_per_epoch if settings.scheduler_every == "epoch" else 0
            ),
            micro_batch_size=settings.micro_batch_size,
            stages=self._stages,
        )
        self.weights = WeightsFile(
            objects.model, self._stages, is_first=not workers.is_follower(context)
        )
        self.logs = StepLogs(
            run=uuid.uuid4().hex if context is None else context.assignment.work.holder,
            is_writer=not workers.is_follower(context),
            noted=self.reporter.noted,
        )
        self.kernels = None if context is None else _kernel_watch(objects.model, context)
        self.training = self._training(len(parameters), recorder)
        if recorder is not None:
            self._record(recorder, variables)

    def _training(self, num_parameters: int, recorder: Recorder | None) -> Training:
        parts: dict[str, Any] = {
            "sums": self._sums,
            "num_parameters": num_parameters,
            "buffers": self.buffers,
            "schedule": self.schedule,
            "loader": self._loader,
            "ledger": self._ledger,
            "scaler": self._objects.scaler,
            "stages": self._stages,
        }
        slots = Slots(**parts)
        if self._num_workers > 1:
            team = workers.leaf_exchange(self._shape.layout, self._objects.model, self._sums)
            slots = TeamSlots(team, **parts)
        objects = self._objects
        watch = () if self.kernels is None else (self.kernels,)
        self._guards = Guards(
            *watch,
            self._differences,
            OtherLoaders(self._data.dataset),
            ScriptCalls(
                objects.model.parameters(),
                objects.optimizers,
                [*objects.schedulers, *objects.plateau.values()],
                objects.extra.values(),
            ),
            LossGraph(objects.model, objects.extra.values()),
            FsdpSettings(objects.model),  # behind what slots tell FSDP
            files.here(),
        )
        return Training(
            shape=self._shape,
            schedule=self.schedule,
            guards=self._guards,
            differences=self._differences,
            slots=slots,
            update=self.update,
            state=self.state,
            comparison=StateComparison(
                self.state,
                self.update.settings,
                self.schedule.draws_digest,
                is_kept=self._is_durable,
            ),
            ledger=self._ledger,
            reporter=self.reporter,
            saver=self._saver,
            logs=self.logs,
            recorder=recorder,
            on_nonfinite=self._settings.on_nonfinite,
            verify_every=0 if self._context is None else self._context.assignment.work.verify_every,
        )

    def _record(self, recorder: Recorder, variables: ScriptVariables) -> None:
        training, settings = self.training, self._settings
        recorder.watch(
            training.comparison,
            variables,
            leads=lambda: training.leads and not training.is_leaving,
            committed=lambda: training.committed,
            facts={
                "num_slots": settings.num_slots,
                "reduction": settings.reduction,
                "is_durable": self._is_durable,
            },
        )

    def open(self, warmup: Callable[[Any], torch.Tensor] | None) -> None:
        """Start what runs beside the script, and join whoever trains."""
        if self._shape.is_exact and (said := self._deterministic.begin(here.device.settings())):
            self.reporter.noted(said)
        self._loader.open()
        self._guards.on_session()
        self._note_memory()
        self._look_at_inputs()
        for note in self._data.notes:
            self.reporter.noted(note)
        self.training.join(
            self._join_alone() if self._context is None else self._join(self._context)
        )
        if warmup is not None:
            self._warm_up(warmup)

    def close(self, *, is_leaving: bool, is_over: bool) -> None:
        """Give everything back; ``is_over``: the run is, not only this replica's part in it."""
        with ExitStack() as last_first:  # one that fails, as where nobody reads, keeps none back
            last_first.callback(torch.set_num_threads, self._threads_before)
            last_first.callback(self._deterministic.end)
            last_first.callback(self._ledger.close)
            last_first.callback(self._loader.close)
            last_first.callback(self._guards.on_end)
            last_first.callback(self.update.close)
            last_first.callback(self._sums.unhook)
            last_first.callback(self.training.give_up_attempt, buffers_may_be_written=False)
            last_first.callback(self._saver.close, is_leaving=is_leaving, is_over=is_over)
            last_first.callback(self.reporter.closed)

    def look_for_cause(self, error: Sequence[object]) -> None:
        """If another worker of this replica has gone, wait to be ended: the error follows."""
        if self._lost is not None and any(isinstance(one, RuntimeError) for one in error):
            workers.await_end_if(self._lost)

    def is_to_write(self, *, leads: bool) -> bool:
        """Whether this replica writes weights; of a model in parts each worker asks worker 0."""
        if not self.weights.is_in_parts:
            return leads
        return self.training.membership.told("save", leads)

    def digest(self) -> str:
        """Return a hash of the whole state, of all stages."""
        return self._stages.joint_digest(self.state.digest(self.training.committed))

    def planned(self, total: int) -> Planned:
        """Return what a step consists of, and how many there are."""
        return Planned(
            replica=self.training.membership.member.replica,
            num_slots=self._settings.num_slots,
            total_steps=total,
            num_samples=self.schedule.size,
            global_batch=self._settings.global_batch_size,
            micro_batch=self._settings.micro_batch_size,
        )

    def _pack(self) -> bytes:
        """Return what of the script a checkpoint keeps for a resume."""
        inputs = self.training.inputs
        return b"\n".join(
            (self._differences.pack(), b"{}", b"" if inputs is None else inputs.pack())
        )

    def _look_at_inputs(self) -> None:
        """Look at a few samples where somebody compares them."""
        if workers.is_follower(self._context) or not (self._context or self._is_durable):
            return
        with self._differences.dataset.fetching():
            self._samples = self._loader.samples()
        said = (
            from_checkpoint()
            if self._context is None
            else self._context.assignment.work.from_checkpoint
        )
        self.training.inputs = Inputs(
            self._samples, self.reporter.noted, goes_on_anyway=said is FromCheckpoint.ANYWAY
        )

    def _join(self, context: WorkerContext) -> WorkerMembership:
        shape, model, said = self._shape, self._objects.model, self.identity()
        kept = (*said, *identity.describe_groups(self._objects.optimizers))
        facts = facts_of(context, kept, identity.describe_schedules(self.state.schedulers))
        alike = (*said, ("checkpoint=", "given" if self._is_durable else "not given"))
        if workers.is_follower(context):
            self._saver.open(facts, FollowerCheckpointChannel(self.reporter))
            follower = workers.follow(context, shape, self.training, model, alike)
            self._lost = follower.lost
            return follower
        followers = workers.followers_of(context, model, alike)
        self._lost = None if followers is None else followers.lost
        runtime = ProtocolRuntime(
            context,
            shape.layout,
            lambda order: window_size_for(order, shape, context.replica),
            followers or NO_FOLLOWERS,
        )
        channel = CoordinatorCheckpointChannel(runtime, self.reporter)
        self._saver.open(facts, channel)
        elastic = ElasticMembership(
            context,
            runtime,
            shape,
            self.training,
            (*said, *self._compared_here()),
            found=self._saver.found,
            look=self._saver.find_anew,
            is_durable=self._is_durable,
            followers=followers or NO_FOLLOWERS,
        )
        return elastic if followers is None else LeadMembership(elastic, followers)

    def _join_alone(self) -> WorkerMembership:
        threads = self._settings.threads
        if (cores := len(os.sched_getaffinity(0))) > threads:
            self.reporter.noted(
                f"using {threads} of {cores} cores; set Session(threads={cores}) for more; results "
                "match bit for bit only at equal threads"
            )
        kept = (*self.identity(), *identity.describe_groups(self._objects.optimizers))
        facts = facts_alone(kept, identity.describe_schedules(self.state.schedulers))
        self._saver.open(facts, LocalCheckpointChannel(self.reporter))
        return Alone(self._shape, self.training, found=self._saver.found, noted=self.reporter.noted)

    def identity(self) -> tuple[tuple[str, str], ...]:
        """Return what must be equal between two runs for their results to be equal."""
        described = identity.describe(
            self._settings,
            loading.check_dataset(self._data.dataset),
            self.schedule,
            self._objects.optimizers,
        )
        return (*described, *mesh_identity())

    def _compared_here(self) -> tuple[tuple[str, str], ...]:
        """Return what must be equal between replicas, and need not when a run is gone on with."""
        samples = identity.describe_samples(self._samples)
        mark, here = self._saver.mark, (*identity.describe_modules(), *samples)
        return ((CHECKPOINT_PLACE, mark), *here) if mark else here

    def _warm_up(self, warmup: Callable[[Any], torch.Tensor]) -> None:
        """Run a forward and a backward of the user's, and forget everything about it."""
        request = self.schedule.request(0, 0)
        if request is None:
            raise AssertionError("a dataset holds at least one global batch")
        self._loader.want(0, [0])
        with randomness.preserved():
            batch = self._loader.take_batch(request)
            randomness.seed_place("slot", self._settings.seed, 0, 0)
            self.buffers.begin()
            loss = warmup(batch)
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                torch.autograd.backward(loss)
            self.buffers.rewind()
        torch.clear_autocast_cache()
        for parameter in self._objects.model.parameters():
            parameter.grad = None

    def _note_memory(self) -> None:
        """Say how much memory the sums of gradients take, where that is worth a line."""
        owned = range(self._settings.num_slots)
        copies = batching.peak_copies(self._settings.num_slots, owned)
        copy_bytes = sum(
            bucket.numel * bucket.dtype.itemsize for bucket in self._shape.layout.buckets
        )
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if copies * copy_bytes < memory_bytes * NOTEWORTHY:
            return
        megabytes = copy_bytes / (1 << 20)
        what = "1 gradient copy" if copies == 1 else f"up to {copies} gradient copies"
        batches = f"{counted(len(owned), 'micro-batch')} {'is' if len(owned) == 1 else 'are'}"
        self.reporter.noted(f"{what} of {megabytes:.1f} MB while {batches} added up on one replica")


def _kernel_watch(model: torch.nn.Module, context: WorkerContext) -> KernelWatch | None:
    """Return what looks whether the accelerators of a model go on; None: it is in host memory."""
    devices = {one.device for one in model.parameters()} - {torch.device(host.LOCATION)}
    if not devices:
        return None
    name = context.assignment.device_name if len(devices) == 1 else ""
    end = partial(end_for_device, context)
    return KernelWatch(devices, end, name=name, limit_s=kernel_limit_s())


def _schedule(data: DataArguments, settings: SessionSettings) -> Schedule:
    num_samples = loading.check_dataset(data.dataset)
    draws = None
    if data.sampler is not None:
        draws = Draws(data.sampler, num_samples=num_samples, seed=settings.seed)
    return Schedule(
        size=num_samples if draws is None else draws.size,
        draws=draws,
        global_batch_size=settings.global_batch_size,
        micro_batch_size=settings.micro_batch_size,
        seed=settings.seed,
        shuffle=settings.shuffle,
        drop_last=settings.drop_last,
    )


def _refuse(said: str) -> None:
    """End this replica by what would be warned of."""
    raise ConfigError(f"{said}; --strict refuses it")


def _variables(objects: UserObjects, dataset: object) -> ScriptVariables:
    """Return what looks at the script's variables, apart from what travels with the run."""
    dicts = [vars(one) for one in objects.extra.values() if isinstance(one, PlainState)]
    travels = (*objects.schedulers, *objects.plateau.values(), *objects.extra.values(), *dicts)
    optimizers = with_nested(objects.optimizers)
    return ScriptVariables([objects.model, dataset, objects.scaler, *optimizers, *travels])


def _state(objects: UserObjects, buffers: BufferRules) -> State:
    return State(
        model=objects.model,
        local_buffers=buffers.local,
        optimizers=objects.optimizers,
        schedulers=[*objects.schedulers, *objects.plateau.values()],
        scaler=objects.scaler,
        extra=objects.extra,
    )


def _ledger_path(context: WorkerContext | None) -> Path | None:
    if context is None:
        return None
    place = f".{context.assignment.place}" if workers.is_follower(context) else ""
    return Path(context.assignment.work.out) / run_files.LEDGER / f"{context.replica}{place}.jsonl"
