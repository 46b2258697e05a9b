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
        sentence="Session(checkpoint=...) with 2 workers per replica is not possible yet; leave "
        "out one of the two",
        when="checkpoints of a job whose replicas have several workers",
        instead="one of the two",
        proof=f"{SESSION}::test_what_several_workers_cannot_do_is_told",
    ),
    Refusal(
        sentence='buffers={...: "local"} with 2 workers per replica is not possible: the workers '
        "would have different ones; leave out one of the two",
        when="a buffer that is not the same on all replicas",
        instead="another rule",
        proof=f"{SESSION}::test_what_several_workers_cannot_do_is_told",
    ),
    Refusal(
        sentence="parameter 'weight' is sharded, which is not possible yet; leave out fully_shard "
        "and parallelize_module",
        when="a model is sharded over the workers",
        instead="each worker has the whole model",
        proof=f"{SESSION}::test_sharded_parameters_are_refused",
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
]
