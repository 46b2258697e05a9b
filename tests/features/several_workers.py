"""What holds in replicas of several workers, for each row of the page of features.

Owns where this differs from "the same": a row that is trained in a job of the catalogue is trained
in replicas of two workers too, whole and under ``fully_shard``, by ``test_any_history``; one that
names a test is shown by that test in replicas of two workers.  ``test_several_workers`` keeps this
complete, and reproduces each sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.features.feature import Feature

KILLS = "tests/processes/test_kills.py"
SEVERAL = "tests/processes/test_several_trainers.py"
JOINED = f"{SEVERAL}::test_join_drain_and_the_death_of_either_worker_leave_no_trace"
FED = "tests/processes/test_data_of_two_workers.py"
STAGED = "tests/processes/test_pipelines.py"
GIVEN = f"{FED}::test_two_workers_get_what_one_gets"
OTHER_LENGTH = f"{FED}::test_a_joiner_with_another_length_is_refused"

TESTED = {
    "`session.evaluate`": f"{KILLS}::test_a_kill_of_one_of_two_workers_loses_nothing",
    "add_param_group in a tail": JOINED,
    "ReduceLROnPlateau by name": JOINED,
    "samplers of every kind": GIVEN,
    "a sampler, a kill, a resume at another size": JOINED,
    "a DataLoader": JOINED,
    "a DataLoader with a batch sampler": GIVEN,
    "worker_init_fn, prefetch_factor, timeout": GIVEN,
    "pin_memory, persistent_workers of a DataLoader": GIVEN,
    "a DataLoader for `session.evaluate`": GIVEN,
    "a dataset of five samples": GIVEN,
    "a dataset of 10^9 samples": GIVEN,
    "a dataset that raises": f"{FED}::test_an_error_of_the_dataset_comes_out_of_two_workers",
    "a dataset with a generator of its own": f"{FED}::test_a_generator_of_its_own_is_told_by_each",
    "a dataset of another length on a joiner": OTHER_LENGTH,
    "a bit that flips on one replica": "tests/processes/test_verify.py::"
    "test_a_bit_that_flips_on_the_second_worker_costs_its_replica",
    "a replica that is slower than the others": "tests/processes/test_balance.py::"
    "test_followers_compute_what_worker_0_of_their_replica_does",
    "a script that hangs on one replica": f"{SEVERAL}::"
    "test_a_worker_that_hangs_is_named_and_its_replica_replaced",
}
"""Which test shows a row in replicas of two workers, where it is another than that of one."""

ONE_WORKER = {
    "timm, Hugging Face datasets, optimizers of others": "no test has more",
    "Hugging Face causal language models": "the example makes no mesh",
    "torchvision models, TensorBoard": "the example makes no mesh",
    "MLflow": "the example makes no mesh",
}
"""Rows that are shown in replicas of one worker only, and why."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What works as long as its model is whole, in replicas of however many workers."""

    mark: str
    """For the page: what stands against sharding."""

    says: str
    """A part of the sentence that ends the run: of pliant, or of torch before a session is made."""


SUMS = Whole(mark="it adds up over a parameter", says="adds up over the parts of a sharded param")
FUSED = Whole(mark="fused", says="fused=True with sharded parameters")
COPIED = Whole(mark="torch does not copy such a model", says="FSDP does not support deepcopy")
ONE_TYPE = Whole(mark="one type of number in each call of it", says="expects uniform original")
SKIPPED = Whole(
    mark="leave such a part of the model out of it",
    says="a sharded parameter was used in one micro-batch and not in another",
)

WHOLE = {
    "Adafactor": SUMS,
    "Rprop(foreach=True)": Whole(mark="`foreach=False`", says="sharded: say foreach=False"),
    **{f"{name}(fused=True)": FUSED for name in ("Adagrad", "Adam", "AdamW", "SGD")},
    "Muon with AdamW": SUMS,
    "an optimizer of your own": Whole(
        mark="if it adds up over a parameter, as a norm does", says=SUMS.says
    ),
    "AveragedModel with SWALR": COPIED,
    "an exponential mean of the weights": COPIED,
    "complex64 parameters and buffers": ONE_TYPE,
    "complex128 parameters and buffers": ONE_TYPE,
    "gradient penalty, double backward": Whole(
        mark="torch frees whole weights after the first backward", says="setStorage: sizes"
    ),
    "SAM": Whole(mark="weights are taken by name", says="to not have been used in the graph"),
    "branches that only some samples take": SKIPPED,
    "stochastic depth": SKIPPED,
    "scalar, empty, transposed and strided parameters": Whole(
        mark="torch takes none that is scalar or not contiguous", says="support scalar parameters"
    ),
    "convolutions, batch and instance statistics, channels_last": Whole(
        mark="torch takes none in channels_last", says="does not support non-contiguous parameters"
    ),
    "your own hooks": Whole(
        mark="torch calls none on the gradient of a weight", says="which calls no hooks on its"
    ),
}
"""Features whose models cannot be under ``fully_shard``; all others can, with the same bits."""


def mark_of(name: str) -> str:
    """Return what the page says of a row; empty: the same as with one worker."""
    if name in ONE_WORKER:
        return f"one worker only: {ONE_WORKER[name]}"
    return f"not under `fully_shard`: {WHOLE[name].mark}" if name in WHOLE else ""


def shown_by(feature: Feature) -> str:
    """Return the test that shows a feature in replicas of two workers; empty: its group's."""
    return TESTED.get(feature.name, feature.proof)


def alike_when_sharded(features: list[Feature]) -> list[Feature]:
    """Return those whose models can be sharded."""
    return [feature for feature in features if feature.name not in WHOLE]
