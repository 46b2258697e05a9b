"""What replicas of several workers refuse, with the sentence that a user reads.

Owns that table; a row names the test that shows it, for it takes several processes.
"""

from __future__ import annotations

from tests.features.refusal import Refusal

from pliant.recipes.gpt import GPTConfig, GPTStage

MESH = "tests/engine/replica/test_device_mesh.py"
STAGES = "tests/engine/replica/test_stages.py"
SESSION = "tests/engine/replica/test_workers.py"

WORKERS = [
    Refusal(
        sentence="pliant.mesh() takes the size of each dimension: pliant.mesh(shard=2)",
        when="a mesh without dimensions",
        instead="name them",
        proof=f"{MESH}::test_a_mesh_has_dimensions",
    ),
    Refusal(
        sentence="pliant.mesh(shard=0): every size is an integer of at least 1",
        when="a size that is none",
        instead="1, or leave the dimension out",
        proof=f"{MESH}::test_a_size_is_a_positive_integer",
    ),
    Refusal(
        feature=("structure", "context parallelism inside a replica"),
        sentence="pliant.mesh(cp=2): context parallelism is not possible on the CPU, for which "
        "PyTorch's context_parallel has no attention; the dimensions of a mesh are shard, tp and "
        "pp",
        when="context parallelism",
        instead="`shard`, `tp` and `pp`",
        proof=f"{MESH}::test_context_parallelism_is_refused_as_long_as_torch_has_none_on_the_cpu",
    ),
    Refusal(
        sentence="pliant.mesh(ep=2): 'ep' is not possible yet; the dimensions of a mesh are shard, "
        "tp and pp",
        when="a dimension of another name",
        instead="`shard`, `tp` and `pp`",
        proof=f"{MESH}::test_a_dimension_that_nobody_knows_is_refused",
    ),
    Refusal(
        sentence="pliant.mesh(replicate=2, shard=1): 'replicate' would be copies of the model, and "
        "those are the replicas of the job; leave it out, and say how many with --max",
        when="a mesh of HSDP",
        instead="`shard` alone, and `--max 2`",
        proof=f"{MESH}::test_the_copies_of_a_model_are_replicas",
    ),
    Refusal(
        sentence="pliant.mesh(shard=2, tp=2) is of 4 workers, and a replica of this job has 2; say "
        "other sizes, or --workers-per-replica 4",
        when="the sizes of the mesh do not multiply to the workers of a replica",
        instead="one of the two",
        proof=f"{MESH}::test_sizes_that_do_not_fit_are_told_with_both_numbers",
    ),
    Refusal(
        sentence="pliant.mesh(shard=2, tp=2) needs 4 workers, and a script that runs alone is one: "
        "pliant run --workers-per-replica 4 ...",
        when="a script with tensor parallelism runs alone",
        instead="`pliant run`; only `shard` is 1 there by itself, for it changes no bits",
        proof=f"{MESH}::test_alone_what_changes_bits_needs_its_workers",
    ),
    Refusal(
        sentence="pliant.mesh was called twice with different sizes; a replica has one",
        when="two meshes",
        instead="one, with all dimensions",
        proof=f"{MESH}::test_a_script_that_runs_alone_has_a_mesh_of_one",
    ),
    Refusal(
        sentence="a replica of this job has 2 workers, and the script has not said what each is "
        "for; call pliant.mesh(shard=2) before the session is made",
        when="a script without a mesh is started with `--workers-per-replica 2`",
        instead="the line, or no `--workers-per-replica`",
        proof=f"{SESSION}::test_a_script_says_what_its_workers_are_for",
    ),
    Refusal(
        sentence='buffers={...: "local"} with 2 workers per replica is not possible: the workers '
        "would have different ones; leave out one of the two",
        when="a buffer that is not the same on all replicas",
        instead="another rule",
        proof=f"{SESSION}::test_what_several_workers_cannot_do_is_told",
    ),
    Refusal(
        sentence="fused=True with sharded parameters ('weight' is one) is not possible: its bits "
        "depend on where in memory a value lies; leave it out",
        when="a fused optimizer, with sharded parameters",
        instead="the same optimizer without it",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="a parameter of shape [6, 4] is sharded over 4 workers by two dimensions of the "
        "mesh, which do not divide 6; its parts are no boxes, as a checkpoint keeps them, so "
        "choose sizes that divide it, or leave out checkpoint= and --init",
        when="`fully_shard` over `parallelize_module` with sizes that do not divide, and "
        "checkpoints",
        instead="other sizes",
        proof="tests/engine/replica/test_workers.py::"
        "test_parts_that_are_no_boxes_are_not_for_checkpoints",
    ),
    Refusal(
        sentence="'blocks.0' is wrapped in FullyShardedDataParallel; use fully_shard of "
        'torch.distributed.fsdp, with mesh["shard"] of pliant.mesh',
        when="FSDP1",
        instead="FSDP2",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="parameter 'weight' is sharded over a mesh that is not this replica's; give "
        'fully_shard and parallelize_module a part of pliant.mesh: mesh=mesh["shard"]',
        when="another mesh, or none is given to `fully_shard`",
        instead="that of `pliant.mesh`",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="'the model' is sharded over a mesh of two dimensions, which adds up copies by "
        'itself; give fully_shard one dimension, mesh["shard"]: pliant has the copies, '
        "its replicas",
        when="HSDP of torch",
        instead="one dimension",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="'the model' is under replicate, which adds up copies by itself; give fully_shard "
        'one dimension, mesh["shard"]: pliant has the copies, its replicas',
        when="`replicate` of torch",
        instead="leave it out",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="parameter 'weight' is sharded over mesh[\"shard\"] and not by fully_shard; "
        "workers compute different micro-batches there, so give parallelize_module another "
        'dimension: mesh["tp"]',
        when="`parallelize_module` over `shard`",
        instead="`tp`",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="'the model' has a CPUOffloadPolicy, which is not possible; leave it out",
        when="parameters that lie elsewhere between two uses",
        instead="leave it out",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="'the model' is sharded in a way that pliant cannot follow: ...",
        when="torch lets nobody else add up the gradients of this module",
        instead="`fully_shard` by module",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="step.grad_norm of a sharded model, or of one in stages, is known where "
        "max_grad_norm=... is given: all workers have to compute it together",
        when="the norm of a sharded gradient is asked for, and nothing is clipped by it",
        instead="`max_grad_norm=`",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="multinomial of a sharded tensor draws according to the values of other workers: "
        "what it draws would depend on how many there are; use it on the whole tensor "
        "(full_tensor()) or before sharding",
        when="`torch.multinomial`, or `rrelu` while it trains, of a sharded tensor",
        instead="`full_tensor()`",
        proof="tests/engine/replica/test_fsdp.py::"
        "test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told",
    ),
    Refusal(
        sentence="'the model' was told set_requires_gradient_sync(False), and so would have "
        "another gradient of a micro-batch; leave it out: the session adds up micro-batches by "
        "itself, and weighs them by step.backward(loss, weight=...)",
        when="`set_requires_gradient_sync`, `set_gradient_divide_factor`, "
        "`set_custom_reduce_scatter` or `set_manual_backward_finalization` of `fully_shard`, "
        "before the session is made or behind it",
        instead="the script without it",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="Short keeps 'first' of the sharded parameter 'weight' in another shape, which "
        "would not reach a joining replica; use an optimizer whose state has the shape "
        "of the parameters",
        when="Adafactor and the like, with sharded parameters",
        instead="Adam, SGD, ...",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="Muon adds up over the parts of a sharded parameter, so its bits depend on how "
        "many workers a replica has; use an optimizer that takes each value by itself, as AdamW "
        "and SGD do, or leave its parameters out of fully_shard",
        when="Muon, Adafactor and whatever else takes a norm, a mean or a product of matrices, "
        "with sharded parameters",
        instead="AdamW, SGD, ...; one that makes gradients whole by itself (`full_tensor()`); or "
        "parameters that are whole",
        proof="tests/engine/replica/test_fsdp.py::"
        "test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told",
    ),
    Refusal(
        sentence="parameter 'weight' is under fully_shard, which calls no hooks on its gradient "
        "(register_hook); leave the hook out, or that part of the model out of fully_shard",
        when="`register_hook` on a sharded parameter",
        instead="a step pre-hook of the optimizer, which sees the whole step's gradient",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="two stages of the model have '0.weight', and session.save writes one; give the "
        "layers of each stage the names that they have in the whole model",
        when="`session.save` of a model in stages whose layers have the same names",
        instead="a `ModuleDict` of layers by their number in the whole model",
        proof="tests/engine/state/test_whole_weights.py::"
        "test_two_workers_write_what_one_would_of_a_model_that_is_whole",
    ),
    Refusal(
        sentence="scaler= with a model in stages (pliant.mesh(pp=...)) is not possible: the "
        "schedule computes the loss by itself; use bfloat16, which needs no scaler",
        when="a GradScaler, with pipeline parallelism",
        instead="bfloat16",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_model_in_stages_is_told",
    ),
    Refusal(
        sentence="a GPT with layers=4 and tied=True has no 2 stages: each needs a layer, and no "
        "two of them can share a weight",
        when="a stage of the recipe's GPT as it is by default",
        instead="`GPTConfig(tied=False)`",
        script=lambda: GPTStage(GPTConfig(), 0, 2),
    ),
    Refusal(
        sentence="two stages of the model have '0.weight', and a checkpoint has one; give the "
        "layers of each stage the names that they have in the whole model, or leave out "
        "checkpoint=",
        when="checkpoints of a model in stages whose layers have the same names",
        instead="a `ModuleDict` of layers by their number in the whole model",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_model_in_stages_is_told",
    ),
    Refusal(
        sentence="step.backward was called, and this worker has one stage of the model; call "
        "step.pipeline(schedule, inputs, target=...), which runs all of them",
        when="`step.backward` with pipeline parallelism",
        instead="`step.pipeline`",
        proof=f"{STAGES}::test_a_stage_alone_has_no_backward",
    ),
    Refusal(
        sentence="step.pipeline: the schedule has given no loss on any worker; make it with "
        "loss_fn=..., and say target=...",
        when="a schedule that computes no loss",
        instead="`Schedule1F1B(stage, 4, loss_fn=...)`",
        proof=f"{STAGES}::test_a_schedule_without_a_loss_is_told",
    ),
    Refusal(
        sentence="step.pipeline takes a schedule of torch.distributed.pipelining, such as "
        "Schedule1F1B, got Linear",
        when="something else is given to `step.pipeline`",
        instead="a schedule",
        proof=f"{STAGES}::test_what_is_no_schedule_is_told",
    ),
    Refusal(
        sentence="step.pipeline was given a tensor of the shape [2, 4], which the 4 chunks of the "
        "schedule do not divide; choose a micro_batch_size that they do and drop_last=True",
        when="a micro-batch that the chunks of the schedule do not divide",
        instead="another `micro_batch_size` or number of chunks, and `drop_last=True`",
        proof=f"{STAGES}::test_a_batch_that_the_chunks_do_not_divide_is_refused",
    ),
    Refusal(
        sentence="step.pipeline was given tensors of the shapes [3, 16], and of [8, 16] before; "
        "torch sends tensors of one shape from stage to stage, so say drop_last=True where the "
        "data does not divide",
        when="a micro-batch of other shapes than the first, with pipeline parallelism",
        instead="`drop_last=True`",
        proof=f"{STAGES}::test_a_micro_batch_of_another_shape_is_told",
    ),
    Refusal(
        sentence="step.pipeline with scaler= is not possible: the schedule computes the loss by "
        "itself; use bfloat16, which needs no scaler",
        when="a GradScaler and a schedule",
        instead="bfloat16",
        proof=f"{STAGES}::test_a_schedule_and_a_scaler_are_refused",
    ),
    Refusal(
        sentence="step.pipeline of a model under fully_shard is not possible yet; leave out one of "
        "the two",
        when="FSDP2 and pipeline parallelism in one replica",
        instead="one of the two",
        proof="tests/engine/replica/test_team_slots.py::"
        "test_a_schedule_and_a_sharded_model_are_refused",
    ),
    Refusal(
        sentence="the gradients of a sharded parameter were cast after they were reduced; say "
        "MixedPrecisionPolicy(reduce_dtype=torch.float32) for fully_shard",
        when="gradients are to be added in 16 bits",
        instead="the line",
        proof="tests/engine/replica/test_fsdp.py::"
        "test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told",
    ),
    Refusal(
        sentence="the loss of a micro-batch goes back to a sharded parameter by another way than "
        "the forward of its module, as a penalty on weights does; compute that in the forward of "
        "the module that fully_shard was given, or use weight_decay= of the optimizer",
        when="a penalty on sharded weights that the loop computes",
        instead="it in the forward, or `weight_decay=`",
        proof="tests/engine/replica/test_fsdp.py::"
        "test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told",
    ),
    Refusal(
        sentence="a sharded parameter was used in one micro-batch and not in another that was "
        "computed at the same time; use every parameter in each, or leave that part of "
        "the model out of fully_shard",
        when="branches that depend on the data",
        instead="that part whole",
        proof="tests/engine/replica/test_fsdp.py::"
        "test_each_slots_leaves_are_those_of_a_whole_model_and_what_has_none_is_told",
    ),
    Refusal(
        sentence="step.backward was not called for a micro-batch of a sharded model; call it for"
        " each, with weight=0 for one that does not count",
        when="a micro-batch without `step.backward`",
        instead="`step.backward(loss, weight=0)`",
        proof="tests/engine/replica/test_team_slots.py::test_a_sharded_model_needs_every_backward",
    ),
    Refusal(
        sentence="worker 0 of this replica has made its pliant.Session, and worker 1 has not "
        "within 540 s; every worker runs the same script",
        when="one worker of a replica does not come to the session",
        instead="the same script on all",
        proof=f"{SESSION}::test_a_follower_that_does_not_come_is_told",
    ),
    Refusal(
        sentence="worker 1 of this replica is in the end of session.steps(), and worker 0 in the "
        "loop over session.steps(); the workers of a replica run the same script in lockstep, so "
        "every one makes the same calls",
        when="the script does something on one worker of a replica only: a break, an evaluation",
        instead="the same on all",
        proof="tests/processes/test_several_trainers.py::"
        "test_workers_that_do_not_do_the_same_are_told_so",
    ),
    Refusal(
        sentence="parameter 'token.weight' is float32 [256, 48] on worker 1 of this replica and "
        "float32 [256, 32] on worker 0; every worker makes the same model and the same session, "
        "whatever its RANK",
        when="a model or settings that are not those of worker 0 of the replica",
        instead="the same on all",
        proof="tests/processes/test_several_trainers.py::"
        "test_a_worker_with_another_model_is_told_so",
    ),
    Refusal(
        sentence="at step 0 the tensors of worker 1 of this replica are not those of worker 0; "
        "every worker runs the same script, so give all the same seed and the same weights, not "
        "others by RANK",
        when="weights, modes or settings that are not those of worker 0 of the replica",
        instead="the same on all",
        proof="tests/processes/test_several_trainers.py::"
        "test_workers_that_begin_with_other_weights_are_told_so",
    ),
]
