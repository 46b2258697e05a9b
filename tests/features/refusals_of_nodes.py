"""What is refused of jobs on several nodes, with the sentence that a user reads.

Owns this table; see ``refusals_elsewhere``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.features.refusal import Refusal
from tests.features.refusals_elsewhere import began, ended

from pliant.coordinator.register import StoredRegister
from pliant.coordinator.register_places import LockedFile
from pliant.core.values import Generation, Incarnation, Lineage, Register
from pliant.http.server import open_socket
from pliant.run import run_directory


def take_over_with_another_token() -> None:
    """Write a register as the second of two coordinators."""
    place = LockedFile(Path("register.json"))
    first = Register(incarnation=Incarnation(1), number=Generation(0), lineage=Lineage(1))
    StoredRegister(place, "one").write(first, expected=None)
    StoredRegister(place, "two").write(replace(first, named=1), expected=first)


def take_over_with_another_command() -> None:
    """Write a register as the second of two jobs of one name."""
    place = LockedFile(Path("register.json"))
    first = Register(incarnation=Incarnation(1), number=Generation(0), lineage=Lineage(1))
    StoredRegister(place, "one", ("train.py",)).write(first, expected=None)
    StoredRegister(place, "one", ("tune.py",)).write(replace(first, named=1), expected=first)


NODES = [
    Refusal(
        sentence="a replica of job gpt has 4 workers, all on one node, and this one has 2 devices; "
        "start its agent with --devices 4 or more, or leave it out",
        when="a node has fewer devices than a replica has workers",
        instead="`--devices 4`",
        proof="tests/agent/test_local_replica.py::"
        "test_a_node_with_fewer_devices_than_a_replica_has_workers_says_so",
    ),
    Refusal(
        sentence="a coordinator needs a place of its own, to which its agents come back: either "
        "--listen HOST:PORT, or --port N for agents on this host",
        when="`pliant coordinator` without one, or with both",
        instead="`--listen gpu1:7000`",
        command="coordinator train.py",
    ),
    Refusal(
        sentence="a coordinator's agents are in no pool; --pool is for pliant run",
        when="the job file of a coordinator names a pool",
        instead="leave out `spec.pool`",
        command="coordinator --port 7000 job.yaml",
        replaced=("  startReplicas: 2\n", "  startReplicas: 2\n  pool: {name: lab}\n"),
    ),
    Refusal(
        sentence="... holds another run; choose another --out",
        when="a coordinator is to follow one of another job",
        instead="the command of the one before, or another `--out`",
        command="coordinator --port 7000 --out run train.py",
        before=began(),
    ),
    Refusal(
        sentence="the run of ... has finished; choose another --out",
        when="a coordinator is to follow one that came to its end",
        instead="another `--out`",
        command="coordinator --port 7000 --out run train.py",
        before=ended(job="train", command=["train.py"]),
    ),
    Refusal(
        sentence="gone/token cannot be used: No such file or directory",
        when="the token for the agents cannot be written",
        instead="a directory of one's own",
        script=lambda: run_directory.lasting_token(Path("gone/token")),
    ),
    Refusal(
        sentence="--join x is no HOST:PORT, such as 10.0.0.1:7000, gpu1:7000 or [fd00::1]:7000",
        when="`--join` or `--listen` is given something else",
        instead="the place that the coordinator says",
        command="agent --join x --token-file train.py",
    ),
    Refusal(
        sentence="--join http://[x is neither HOST:PORT nor a URL, as https://gpu1:7000",
        when="`--join` is given what looks like a URL and is none",
        instead="a URL, or `HOST:PORT`",
        command="agent --join 'http://[x' --token-file train.py",
    ),
    Refusal(
        sentence="--join gpu1:7000, names an empty place; leave out the comma",
        when="a list of places ends or begins with a comma",
        instead="`--join gpu1:7000,gpu2:7000`",
        command="agent --join gpu1:7000, --token-file train.py",
    ),
    Refusal(
        sentence="--join gpu1:7000,gpu1:7000 names gpu1:7000 twice; name each place once",
        when="a list of places has one twice",
        instead="`--join gpu1:7000,gpu2:7000`",
        command="agent --join gpu1:7000,gpu1:7000 --token-file train.py",
    ),
    Refusal(
        sentence="--join @/nowhere: there is no such file; it is the coordinator.json of the "
        "coordinator's --out, and there while one serves",
        when="an agent is started with a file that no coordinator has written within half a minute",
        instead="start the coordinator, and name its file: `--join @runs/gpt/coordinator.json`",
        proof="tests/cli/test_several_hosts.py::"
        "test_a_file_that_no_coordinator_has_written_is_waited_for_and_then_named",
    ),
    Refusal(
        sentence="--join @train.py: no coordinator has written that; name the coordinator.json of "
        "its --out",
        when="an agent is given another file",
        instead="`--join @runs/gpt/coordinator.json`",
        command="agent --join @train.py --token-file train.py",
    ),
    Refusal(
        sentence="--join 127.0.0.1:7341,127.0.0.2:7341 names several hosts that may coordinate: "
        "say with --out DIR where the run's files go, a directory that all of them see",
        when="several hosts may coordinate, and each would have a directory of its own",
        instead="`--out /shared/runs/gpt`",
        command="run --join 127.0.0.1:7341,127.0.0.2:7341 --token-file job.token train.py",
    ),
    Refusal(
        sentence="--register gs://bucket/gpt: a register lies in a directory that the hosts share, "
        "or on s3://",
        when="the register is to lie where two coordinators could not be kept apart",
        instead="`--register s3://bucket/gpt`, or a directory",
        command="coordinator --port 7341 --register gs://bucket/gpt train.py",
    ),
    Refusal(
        sentence="--register s3:// names no bucket; write s3://BUCKET/DIR",
        when="the register is to lie in no bucket",
        instead="`--register s3://bucket/gpt`",
        command="coordinator --port 7341 --register s3:// train.py",
    ),
    Refusal(
        sentence="--register s3://bucket/gpt/probe-0123456789abcdef cannot be written: permission "
        "is denied (Unable to locate credentials)",
        when="an object store lets nobody write: no credentials, no such bucket",
        instead="`AWS_ACCESS_KEY_ID` and the others, as for checkpoints",
        proof="tests/run/test_register_location.py::test_a_bucket_that_is_not_there_is_refused",
    ),
    Refusal(
        sentence="--register ... cannot be written: File exists",
        when="the directory of a register cannot be made",
        instead="a directory of one's own",
        command="coordinator --port 7341 --register train.py --name gpt train.py",
    ),
    Refusal(
        sentence="--register /shared/register is that of job gpt; give job tune a place of its own",
        when="two jobs are to have one register: each would end the other's coordinators",
        instead="a directory for each: `--register /shared/tune`",
        proof="tests/run/test_register_location.py::test_the_place_of_another_job_is_refused",
    ),
    Refusal(
        sentence="s3://... takes writes whatever their condition (If-Match, If-None-Match), so it "
        "cannot keep two coordinators apart; choose another --register",
        when="an object store speaks S3 and knows no conditions",
        instead="a directory that the hosts share",
        proof="tests/run/test_register_location.py::test_a_store_that_takes_every_write_is_refused",
    ),
    Refusal(
        sentence="/shared/register is on a file system without hard links (Operation not "
        "permitted), so it cannot keep two coordinators apart; choose another --register",
        when="a register is to lie on exFAT, gcsfuse and the like",
        instead="another directory, or `s3://`",
        proof="tests/coordinator/test_register_places.py::"
        "test_a_file_system_without_hard_links_is_named",
    ),
    Refusal(
        sentence="ftp://127.0.0.1 is no place of a coordinator, such as gpu1:7000 or "
        "https://gpu1:7000",
        when="`--join` is given a URL of something else",
        instead="`http://` or `https://`",
        command="agent --join ftp://127.0.0.1 --token-file train.py",
    ),
    Refusal(
        sentence="--join 127.0.0.1:70000: the port must be between 1 and 65535",
        when="there is no such port",
        instead="a port in range",
        command="agent --join 127.0.0.1:70000 --token-file train.py",
    ),
    Refusal(
        sentence="--join nobody.invalid: no host of this name is known here: ... known",
        when="the name of a host is none",
        instead="its address",
        command="agent --join nobody.invalid:7000 --token-file train.py",
    ),
    Refusal(
        sentence="the token file gone cannot be read: No such file or directory",
        when="there is no token",
        instead="`DIR/token` of the coordinator's `--out`, or a copy",
        command="agent --join 127.0.0.1:7000 --token-file gone",
    ),
    Refusal(
        sentence="train.py holds no token: one line of 16 or more letters and digits is one",
        when="the file is another one",
        instead="`DIR/token` of the coordinator's `--out`, or a copy",
        command="agent --join 127.0.0.1:7000 --token-file train.py",
    ),
    Refusal(
        sentence="--devices 0 must be between 1 and 10000",
        when="a node is to run no replica, or too many",
        instead="a number in range",
        command="agent --join 127.0.0.1:7000 --token-file train.py --devices 0",
    ),
    Refusal(
        sentence="--label rack must be KEY=VALUE, or several with commas, each of letters, digits, "
        "'.', '_', '/' and '-', at most 63, such as rack=a",
        when="a label of a node is none",
        instead="`--label rack=a,zone=eu`",
        command="agent --join 127.0.0.1:7000 --token-file train.py --label rack",
    ),
    Refusal(
        sentence="--label rack=a,rack=b must name each label once, and 16 of them at most",
        when="a node is in two places",
        instead="one of them",
        command="agent --join 127.0.0.1:7000 --token-file train.py --label rack=a,rack=b",
    ),
    Refusal(
        sentence="--node 'a b' must be letters, digits, '.', '_' and '-', at most 253",
        when="the name of a node has other letters",
        instead="`--node a-b`",
        command="agent --join 127.0.0.1:7000 --token-file train.py --node 'a b'",
    ),
    Refusal(
        sentence="port 70000 is not between 0 and 65535",
        when="there is no such port",
        instead="a port in range, or leave it out",
        command="run --port 70000 train.py",
    ),
    Refusal(
        sentence="cannot listen on 192.0.2.1 port 7000: Cannot assign requested address",
        when="the address is none of this machine's, or the port is not this user's to take",
        instead="a port above 1023",
        script=lambda: open_socket("192.0.2.1", 7000),
    ),
    Refusal(
        sentence="--listen 0.0.0.0 would be every interface of this host; name the one that the "
        "others reach: ... (lo)",
        when="`--listen` names all addresses",
        instead="the address, or the interface, that the agents reach",
        command="coordinator --listen 0.0.0.0:7000 train.py",
    ),
    Refusal(
        sentence="0.0.0.0 stands for all addresses of a host, and is none by which others reach "
        "it; --join names the one that the coordinator's --listen does",
        when="`--join` names all addresses",
        instead="the address of the coordinator's `--listen`",
        command="agent --join 0.0.0.0:7000 --token-file token",
    ),
    Refusal(
        sentence="--listen 192.0.2.99 is no address of this host; it has ... (lo)",
        when="`--listen` or `--interface` names another host's",
        instead="one of those it has",
        command="coordinator --listen 192.0.2.99:7000 train.py",
    ),
    Refusal(
        sentence="--interface eth7: no host of this name is known here: ... known, nor is it an "
        "interface; there are ... (lo)",
        when="`--listen` or `--interface` names what this host does not have",
        instead="one of those that there are",
        command="agent --join 127.0.0.1:7000 --token-file train.py --interface eth7",
    ),
    Refusal(
        sentence="--listen gpu1 is 127.0.1.1 on this host, which no other host reaches (see "
        "/etc/hosts); give an address: 10.0.0.1 (eth0)",
        when="a host has its own name for loopback, as Debian does",
        instead="its address",
        proof="tests/machine/test_interfaces.py::"
        "test_a_name_that_is_loopback_here_is_refused_for_others",
    ),
    Refusal(
        sentence="this host has no way to 10.0.0.1: Network is unreachable; its addresses are "
        "127.0.0.1 (lo)",
        when="no interface leads to the coordinator",
        instead="an address that the host reaches",
        proof="tests/machine/test_interfaces.py::test_a_host_without_a_way_says_so",
    ),
    Refusal(
        sentence="--out runs/gpt is of this host, and --join of another; give one",
        when="a command is told of two jobs: one here and one elsewhere",
        instead="`--join` and `--token-file`, or `--out`, `--job` or `--pool`",
        command="status --out runs/gpt --join gpu1:7000 --token-file token",
    ),
    Refusal(
        sentence="--join gpu1:7000 needs --token-file FILE, with the job's token in it",
        when="`status`, `scale`, `explain` ... of a job elsewhere, without its token",
        instead="a copy of the file `token` in the directory of the run",
        command="status --join gpu1:7000",
    ),
    Refusal(
        sentence="--token-file is for the coordinator that --join names; give both",
        when="`--token-file`, or a `--tls-...` file, and no coordinator elsewhere",
        instead="`--join HOST:PORT` as well",
        command="doctor --token-file train.py",
    ),
    Refusal(
        sentence="--nnodes 2 is for a job on several hosts: leave it out, or add --join HOST:PORT, "
        "the same on each of them",
        when="an option of several hosts is typed for one",
        instead="`--join gpu1:7000`",
        command="run --nnodes 2 train.py",
    ),
    Refusal(
        sentence="--nnodes two is neither MIN nor MIN:MAX, such as 2:8",
        when="`--nnodes` is no number, or its bounds contradict each other",
        instead="`--nnodes 2:8`",
        command="run --join 127.0.0.1:7341 --token-file t --nnodes two train.py",
    ),
    Refusal(
        sentence="--max 4 and --nnodes 2 both say how many; leave out one",
        when="both kinds of bounds are given",
        instead="`--nnodes` for hosts, `--min` and `--max` for replicas",
        command="run --join 127.0.0.1:7341 --token-file t --nnodes 2 --max 4 train.py",
    ),
    Refusal(
        sentence="--devices-per-node 0 must be between 1 and 10000",
        when="a host is to run no replica, or too many",
        instead="a number in range",
        command="run --join 127.0.0.1:7341 --token-file t --devices-per-node 0 train.py",
    ),
    Refusal(
        sentence="--workers-per-replica 2 needs --devices-per-node 2 or more, not 1",
        when="a host has no room for a whole replica",
        instead="more devices, or fewer workers",
        command="run --join 127.0.0.1:7341 --token-file t --devices-per-node 1 "
        "--workers-per-replica 2 train.py",
    ),
    Refusal(
        sentence="--workers-per-replica 4 over 2 hosts needs --devices-per-node 2 or more, not 1",
        when="a host has no room for its part of a replica",
        instead="more devices, fewer workers, or more hosts",
        command="run --join 127.0.0.1:7341 --token-file t --devices-per-node 1 "
        "--workers-per-replica 4 --hosts-per-replica 2 train.py",
    ),
    Refusal(
        sentence="--hosts-per-replica 3 does not divide --workers-per-replica 8: each host of a "
        "replica has as many of its workers as the others",
        when="the workers of a replica cannot be divided evenly over its hosts",
        instead="a divisor",
        command="run --join 127.0.0.1:7341 --token-file t --workers-per-replica 8 "
        "--hosts-per-replica 3 train.py",
    ),
    Refusal(
        sentence="--hosts-per-replica 0 must be at least 1",
        when="a replica is to be on no host",
        instead="how many hosts it needs",
        command="coordinator --listen 127.0.0.1:7341 --hosts-per-replica 0 train.py",
    ),
    Refusal(
        sentence="--nnodes 1:8 begins with fewer hosts than one replica needs; begin with 2, as "
        "--hosts-per-replica 2 says, or more",
        when="with the fewest hosts there would be no replica",
        instead="as many hosts as one replica has",
        command="run --join 127.0.0.1:7341 --token-file t --nnodes 1:8 --workers-per-replica 2 "
        "--hosts-per-replica 2 train.py",
    ),
    Refusal(
        sentence="--hosts-per-replica 2 is for a job on several hosts: leave it out, or add --join "
        "HOST:PORT, the same on each of them, and --token-file FILE",
        when="one host is to run replicas of several",
        instead="the same command on each host, with `--join`",
        command="run --workers-per-replica 2 --hosts-per-replica 2 train.py",
    ),
    Refusal(
        sentence="a pool is of one host; leave out either --pool or --hosts-per-replica 2",
        when="a job in a pool is to have replicas of several hosts",
        instead="one of the two",
        command="run --pool lab --workers-per-replica 2 --hosts-per-replica 2 train.py",
    ),
    Refusal(
        sentence="--join needs --token-file FILE, with which the hosts of the job prove themselves "
        "to each other; the one that coordinates makes it, the others need a copy",
        when="`pliant run --join` without a token",
        instead="`--token-file job.token`",
        command="run --join 127.0.0.1:7341 train.py",
    ),
    Refusal(
        sentence="--token-file .../job.token is not there; copy it from the host that coordinates "
        "(gpu1:7000)",
        when="a host joins before it has the token",
        instead="`scp`, or a shared directory",
        proof="tests/cli/test_several_hosts.py::"
        "test_who_joins_waits_for_the_token_and_then_says_where_it_is",
    ),
    Refusal(
        sentence="--token-file .../job.token is not there; copy it from the host that coordinates "
        "(http://10.0.0.1:7000)",
        when="the same of a host that may coordinate",
        instead="`scp`, or a shared directory",
        proof="tests/run/test_candidate.py::"
        "test_who_may_coordinate_waits_for_the_token_and_then_says_where_it_is",
    ),
    Refusal(
        sentence="--join gpu1:port is not the place of a coordinator, such as gpu1:7000 or "
        "https://gpu1:7000",
        when="a command about a job elsewhere names none",
        instead="`HOST:PORT` or a URL",
        command="status --join gpu1:port --token-file job.token",
    ),
    Refusal(
        sentence="no coordinator answers at 127.0.0.1:1 or 127.0.0.1:2; see pliant doctor --join",
        when="of several places at which a job may be coordinated none answers",
        instead="a host that coordinates",
        command="status --join 127.0.0.1:1,127.0.0.1:2 --token-file job.token",
    ),
    Refusal(
        sentence="a pool is of one host; leave out either --pool or --join",
        when="`pliant run --join` in a pool",
        instead="one of them",
        command="run --join 127.0.0.1:7341 --pool lab train.py",
    ),
    Refusal(
        sentence="--port 7000 does not go with --join, which names the port; leave it out",
        when="`pliant run --join` with a port of its own",
        instead="`--join gpu1:7000`",
        command="run --join 127.0.0.1:7341 --port 7000 train.py",
    ),
    Refusal(
        sentence="--detach does not go with --join; start it with nohup, or in tmux",
        when="`pliant run --join` is to run in the background",
        instead="`nohup`, `tmux`, or a batch system",
        command="run --detach --join 127.0.0.1:7341 train.py",
    ),
    Refusal(
        sentence="another agent takes part already as node gpu1; leave this one out, or name it "
        "with --node",
        when="a command is typed twice on one host, or two machines have one name",
        instead="`--node gpu1b`",
        proof="tests/coordinator/test_app.py::"
        "test_an_agent_that_speaks_keeps_its_name_from_one_that_was_started_later",
    ),
    Refusal(
        sentence="the coordinator cannot read what this agent says of itself (node_facts.colour: "
        "unknown field); a job needs the same pliant on every node",
        when="two nodes have different versions of pliant",
        instead="the same version on every node",
        proof="tests/coordinator/test_app.py::"
        "test_an_agent_of_another_version_is_told_what_cannot_be_read",
    ),
    Refusal(
        sentence="the certificate of node b names c and 10.0.0.3, and not b; name the node as its "
        "certificate does with --node, or start the coordinator with --tls-any-node",
        when="an agent comes under a name that its certificate does not have",
        instead="`--node c`, or a certificate that names `b`",
        proof="tests/core/test_agreement.py::"
        "test_a_node_that_has_the_certificate_of_another_is_told",
    ),
    Refusal(
        sentence="--token-file: the job at ... has another token; give the file token in the "
        "coordinator's --out, or a copy of it",
        when="a command or an agent comes with a token that is not the job's",
        instead="`--token-file` with a copy of the coordinator's",
        proof="tests/cli/test_which_job.py::test_a_wrong_token_is_one_sentence",
    ),
    Refusal(
        sentence="the job whose register is register.json has another token: give this host the "
        "--token-file of the others, or begin another run with another --out",
        when="a coordinator that has not the token of the job's agents is to take it over",
        instead="a copy of the token file of the one before",
        script=take_over_with_another_token,
    ),
    Refusal(
        sentence="the job whose register is register.json runs another command, and goes on; "
        "begin this one with another --register, or stop that one",
        when="a second job of the same name and token is to have the register of the first",
        instead="`--register /shared/tune`",
        script=take_over_with_another_command,
    ),
    Refusal(
        sentence="--pool lab is a pool, and --job or --join a job; give one",
        when="`pliant top` is told of a pool and of a job",
        instead="one of them",
        command="top --pool lab --job gpt",
    ),
    Refusal(
        sentence="the coordinator runs train.py of job other in /, and the workers here belong to "
        "train.py of job gpt in /runs/gpt",
        when="another job's coordinator answers at the place of an agent's",
        instead="a place for each job",
        proof="tests/agent/test_agent.py::test_an_agent_leaves_a_coordinator_of_another_job",
    ),
    Refusal(
        sentence="the coordinator runs train.py 5 of job gpt in /runs/gpt with "
        "--hosts-per-replica 3, and the workers here belong to a job with --hosts-per-replica 2",
        when="a coordinator is started again with other sizes of a replica, while its agents live",
        instead="the same words as before",
        proof="tests/agent/test_work.py::test_a_coordinator_with_other_sizes_is_told_which",
    ),
    Refusal(
        sentence="job gpt runs train.py 5, and this node was to run train.py 6; give the same "
        "command on every host",
        when="`pliant run --join` is typed with other arguments on another host",
        instead="the same command",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="job gpt has --hosts-per-replica 2, and this node was given 3; give the same "
        "command on every host",
        when="`pliant run --join` is typed with other sizes of a replica on another host",
        instead="the same command",
        proof="tests/agent/test_work.py::test_a_node_that_was_given_other_sizes_of_a_replica_says_so",
    ),
    Refusal(
        sentence="this node has no train.py of job gpt, neither in /home/a nor in /home/b; start "
        "the agent in the directory that has it",
        when="a node lacks the script",
        instead="a copy of it",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="/home/b/train.py is not what job gpt runs on its other nodes (SHA-256 "
        "0123456789ab here, ba9876543210 there); copy train.py from there",
        when="a script was edited on one host only",
        instead="the same script",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="job gpt begins with the weights in /w.pt, which this node does not have; copy "
        "the file to that path",
        when="`--init` names a file that a node lacks",
        instead="the same file on every node",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="/nowhere of job gpt is no directory on this node",
        when="a coordinator that says of no run where it keeps its checkpoints",
        instead="a coordinator of this version",
        proof="tests/agent/test_agent.py::test_an_agent_without_the_jobs_directories_says_which",
    ),
    Refusal(
        sentence="/home/b/runs/gpt-1a2b/b cannot be written: Read-only file system",
        when="a node has no room for what its replicas write",
        instead="start the agent in a directory of one's own",
        proof="tests/agent/test_work.py::"
        "test_a_node_that_does_not_see_the_run_keeps_its_files_beside_it",
    ),
    Refusal(
        sentence="a replica of job gpt has 2 workers, all on one node, and this one has 1 device; "
        "start its agent with --devices 2 or more, or leave it out",
        when="a node has no room for a whole replica",
        instead="more devices, or another node",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="a replica of job gpt has 4 workers, 2 on each host, and this one has 1 device; "
        "start its agent with --devices 2 or more, or leave it out",
        when="a host has no room for its part of a replica of several hosts",
        instead="more devices, or another host",
        proof="tests/agent/test_work.py::test_what_differs_is_named",
    ),
    Refusal(
        sentence="no interface of this host has the address 10.0.0.9; it has ... (lo)",
        when="the address of a host goes while replicas of several hosts start there",
        instead="the agent again, with `--interface`",
        proof="tests/machine/test_interfaces.py::"
        "test_an_address_is_found_at_its_interface_however_it_is_written",
    ),
    Refusal(
        sentence="job gpt needs TLS files of this node: the CA /tls/ca.pem cannot be read: No such "
        "file or directory",
        when="a node lacks a certificate",
        instead="its own, under the same paths",
        proof="tests/agent/test_agent.py::"
        "test_an_agent_whose_node_would_not_be_accepted_leaves_the_job_to_others",
    ),
]
