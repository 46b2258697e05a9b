"""What a replay refuses: logs, moments, options that contradict each other.

Owns the rows of ``pliant replay``.
"""

from __future__ import annotations

from tests.features.refusal import Refusal

ONE_SENTENCE = (
    "tests/cli/test_replay_command.py::test_what_cannot_be_is_one_sentence_and_exit_code_2"
)
ONE_SENTENCE_OF_POOLS = (
    "tests/cli/test_replay_pool.py::test_what_cannot_be_asked_of_a_pool_is_one_sentence"
)
SCENARIOS = "tests/simulate/test_replay_scenario.py::"

REPLAYED = [
    Refusal(
        sentence="runs/none is not there; give the directory of a run, or its log",
        when="nothing lies where the run is looked for",
        instead="a directory that `pliant ls` names",
        command="replay runs/none",
    ),
    Refusal(
        sentence="runs/gpt/pipe is no file; give the directory of a run, or its log",
        when="the log, or a part of it, is a pipe or a device",
        instead="the directory of a run",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="--after model: there is no model of the claimants of a pool; leave --after out",
        when="a what-if of a pool is to go on behind the first other answer",
        instead="the same without `--after`",
        proof=ONE_SENTENCE_OF_POOLS,
    ),
    Refusal(
        sentence="--policy maxReplicas is no rule of a pool; there are devices, minGain,"
        " restInSeconds, patienceInSeconds, quota.TEAM, borrowLimit.TEAM",
        when="a what-if of a pool names a field that pools do not have",
        instead="one of those",
        proof=ONE_SENTENCE_OF_POOLS,
    ),
    Refusal(
        sentence="--policy quota.vision=many is no number of devices from 0 to 100000",
        when="a what-if of a pool names no number of devices",
        instead="a whole number",
        proof=ONE_SENTENCE_OF_POOLS,
    ),
    Refusal(
        sentence="--policy restInSeconds=soon is no number of 0 or more",
        when="a rule of a pool in a what-if is no number",
        instead="a number",
        proof=ONE_SENTENCE_OF_POOLS,
    ),
    Refusal(
        sentence="--policy devices=5: the pool has 4 devices of several kinds; of which kind more"
        " would be is not said",
        when="a what-if would give a pool of several kinds more devices than it had",
        instead="as many or fewer",
        proof="tests/simulate/test_pool_what_if.py::"
        "test_further_devices_of_a_pool_of_kinds_would_be_of_none",
    ),
    Refusal(
        sentence="nothing of this log can be asked: it does not say how a pool began",
        when="a what-if of a pool's log that an older version wrote, or of which the beginning is"
        " gone",
        instead="the log of a pool that was started anew since",
        proof="tests/cli/test_replay_pool.py::"
        "test_a_log_that_does_not_say_how_its_pool_began_is_no_success",
    ),
    Refusal(
        sentence="no scenario can be made: no beginning of a pool, with what it was told, is in"
        " the log",
        when="the same for `--to-scenario`",
        instead="the log of a pool that was started anew since",
        proof="tests/simulate/test_pool_scenario.py::test_of_nothing_none_is_made",
    ),
    Refusal(
        sentence="junk line 2: junk is no log of a job: nothing in it is a record of one",
        when="the file is something else",
        instead="`events.jsonl` of a run",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="--from 'noon' is no time; write 90s or 1.5h after the beginning, or 14:05:30",
        when="`--from`, `--to` or `--around` is no moment",
        instead="a time since the beginning, or of the day",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="--around says of what a scenario is; give --to-scenario FILE, too",
        when="`--around` without a scenario",
        instead="`--to-scenario FILE --around 90s`",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="incident.txt is there already; name another file for the scenario",
        when="a scenario would be written over a file",
        instead="another name",
        proof="tests/cli/test_replay_command.py::"
        "test_a_scenario_is_written_once_and_never_over_a_file",
    ),
    Refusal(
        sentence="no scenario can be made: nothing is known of the core within 30 s of that moment",
        when="the run's log has nothing at that time",
        instead="a time that `pliant replay` shows",
        proof=f"{SCENARIOS}test_nothing_is_made_of_what_nobody_knows",
    ),
    Refusal(
        sentence="--after x is none of stop, model",
        when="`--after` is another word",
        instead="`--after model`",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="--after says how a what-if goes on; give --policy KEY=VALUE, too",
        when="`--after` without another policy",
        instead="`--policy maxReplicas=6 --after model`",
        proof=ONE_SENTENCE,
    ),
    Refusal(
        sentence="--policy and --to-scenario exclude each other; give one of them",
        when="a scenario of what did not happen is asked for",
        instead="one of them",
        proof=ONE_SENTENCE,
    ),
]
