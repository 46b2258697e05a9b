"""What replicas of several workers refuse, with the sentence that a user reads.

Owns that table; a row names the test that shows it, for it takes several processes.
"""

from __future__ import annotations

from tests.features.refusal import Refusal

MESH = "tests/engine/replica/test_device_mesh.py"
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
        sentence="pliant.mesh(cp=2): 'cp' is not possible yet; the dimensions of a mesh are shard "
        "and tp",
        when="context or pipeline parallelism, in which each worker has a part of a gradient",
        instead="`shard` and `tp`",
        proof=f"{MESH}::test_a_dimension_over_which_gradients_are_parts_is_refused",
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
        sentence="scaler= with sharded parameters ('weight' is one) is not possible yet; "
        "leave it out",
        when="a GradScaler, or a fused optimizer, whose bits depend on where in "
        "memory a parameter lies",
        instead="leave it out",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="a parameter of shape [6, 4] is sharded over 4 workers by two dimensions of the "
        "mesh, which do not divide 6; its parts are no boxes, as a checkpoint keeps them, so "
        "choose sizes that divide it, or leave out checkpoint=",
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
        sentence="step.grad_norm of a sharded model is known where max_grad_norm=... is given: "
        "all workers have to compute it together",
        when="the norm of a sharded gradient is asked for, and nothing is clipped by it",
        instead="`max_grad_norm=`",
        proof=f"{SESSION}::test_what_cannot_be_done_with_a_sharded_model_is_told",
    ),
    Refusal(
        sentence="session.save of a sharded model is not possible yet; leave it out",
        when="the weights of a sharded model are to be written",
        instead="leave it out",
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
        sentence="--init of a sharded model is not possible yet; leave it out",
        when="a sharded model is to start from weights of another run",
        instead="leave it out",
        proof=f"{SESSION}::test_a_sharded_model_takes_no_weights_from_a_file",
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
