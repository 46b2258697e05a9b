"""What people do around the loops; each row names the test that does it."""

from __future__ import annotations

from tests.features.feature import Feature

HABITS = "tests/features/test_any_history.py::test_habits_around_the_loops_leave_no_trace"
SESSIONS = "tests/processes/test_elastic_session.py"
FRAMEWORKS = "tests/processes/test_frameworks.py"
SESSION = "tests/engine/test_session.py"

FEATURES = [
    Feature(
        name="several calls of `steps()`",
        note="as training phases, with code between them; joiners come into any",
        proof="tests/processes/test_elastic_calls.py::test_who_is_late_for_a_call_joins_in_the_next_one",
    ),
    Feature(
        name="`step.stop()` on one replica",
        note="by its own clock or loss; all stop after the same step",
        proof=HABITS,
    ),
    Feature(
        name="`break` from the outer loop",
        note="on all replicas alike",
        proof=f"{SESSIONS}::test_a_break_on_all_replicas_ends_the_job",
    ),
    Feature(
        name="a loss or gradient that is nan or inf",
        note='told once, counted by `pliant status`; `on_nonfinite="skip"` or `"stop"`',
        proof="tests/processes/test_nonfinite.py::test_a_nan_of_one_slot_has_the_same_bits_whoever_dies",
    ),
    Feature(
        name="a bit that flips on one replica",
        note="`--verify-every N` finds it and replaces the replica, if most others are alike",
        proof="tests/processes/test_verify.py::test_the_replica_whose_bit_flipped_is_named_and_replaced",
    ),
    Feature(
        name="a replica that is slower than the others",
        note="`--balance speed` moves micro-batches to the others",
        proof="tests/processes/test_balance.py::test_join_kill_and_drain_while_one_computes_less_leave_no_trace",
    ),
    Feature(
        name="an exception on one replica",
        note="it is replaced, the others lose nothing",
        proof=f"{SESSIONS}::test_a_script_that_fails_on_one_replica_costs_the_others_nothing",
    ),
    Feature(name="autocast opened around the outer loop", proof=HABITS),
    Feature(
        name="`optimizer.zero_grad()` left in the loop", note="it finds no gradient", proof=HABITS
    ),
    Feature(
        name="clipping by value",
        note="in a step pre-hook of the optimizer, which sees the whole step's gradient",
        proof=HABITS,
    ),
    Feature(
        name="random numbers in the tail, or between calls",
        note="the same on every replica",
        proof=HABITS,
    ),
    Feature(
        name="`pliant.State`, and dicts of plain values, in `extra_state`",
        note="best so far, counters of an early stop: they reach joiners and checkpoints",
        proof=HABITS,
    ),
    Feature(
        name="a scheduler per epoch, made by a function",
        note='`scheduler_every="epoch"`; the function gets the optimizer and the steps per epoch',
        proof=HABITS,
    ),
    Feature(
        name="the clip set inside the loop",
        note="`session.max_grad_norm`, the same by all micro-batches that set it",
        proof=HABITS,
    ),
    Feature(
        name="`step.log` and `step.slot`",
        note="means over all micro-batches of a step, the same on every replica",
        proof=HABITS,
    ),
    Feature(name="`copy.deepcopy` and `torch.save` of the model in the tail", proof=HABITS),
    Feature(
        name="`session.leader` writing files",
        note="one replica in each tail",
        proof=HABITS,
    ),
    Feature(
        name="`session.save` in the tail",
        note="the file is whole, whoever dies",
        proof=f"{SESSIONS}::test_weights_saved_at_the_end_are_written_whoever_dies_there",
    ),
    Feature(name="`try` and `finally` around the loop", note="`session.leaving`", proof=HABITS),
    Feature(
        name="`except` of everything around the loop",
        note="who leaves leaves at the next call of the session",
        proof=HABITS,
    ),
    Feature(
        name="threads of your own, daemon or not",
        note="as long as they draw no random numbers from the global generators",
        proof=HABITS,
    ),
    Feature(name="progress bars with percent signs and carriage returns", proof=HABITS),
    Feature(
        name="`session.evaluate`",
        note="shared by the replicas, the same bits for any number of them",
        proof="tests/processes/test_kills.py::test_a_kill_in_an_evaluation_loses_nothing",
    ),
    Feature(
        name="a tail or an evaluation that takes minutes",
        note="`with session.busy(max_s=...)`, or it is taken for a hang after `hang_s`",
        proof=f"{SESSIONS}::test_an_announced_evaluation_may_take_longer_than_every_deadline",
    ),
    Feature(
        name="a script that hangs on one replica",
        note="it is ended after `hang_s` and replaced, the others lose nothing",
        proof=f"{SESSIONS}::test_a_script_that_hangs_while_its_heartbeats_go_on_is_named_ended_and_replaced",
    ),
    Feature(
        name="what one replica alone does to any part of the state",
        result="refused",
        note="found out when the step, or the part of the state, is next voted on, and at the end",
        proof=f"{SESSIONS}::test_what_a_script_does_on_one_replica_only_is_found_out",
    ),
    Feature(
        name="Hugging Face causal language models",
        note="`examples/huggingface_lm.py`, with `make frameworks`",
        proof=f"{FRAMEWORKS}::test_a_hugging_face_model_ends_with_the_same_weights",
    ),
    Feature(
        name="torchvision models, TensorBoard",
        note="`examples/torchvision_resnet.py`, with `make frameworks`; the leader writes",
        proof=f"{FRAMEWORKS}::test_a_torchvision_model_logs_the_same_to_tensorboard",
    ),
    Feature(
        name="MLflow",
        note="one leader after another writes to the same run; with `make frameworks`",
        proof=f"{FRAMEWORKS}::test_mlflow_gets_one_run_from_one_leader_after_another",
    ),
    Feature(
        name='`reduction="fast"`',
        result="fast",
        note="one partial sum per replica and bucket",
        proof=f"{SESSIONS}::test_fast_reduction_gives_every_replica_the_same_weights",
    ),
]
