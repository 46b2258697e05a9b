"""What a replay refuses: logs, moments, options that contradict each other.

Owns the rows of ``pliant replay``.
"""

from __future__ import annotations

from tests.features.refusal import Refusal

ONE_SENTENCE = "tests/cli/test_replay.py::test_what_cannot_be_is_one_sentence_and_exit_code_2"
ONE_SENTENCE_OF_POOLS = (
    "tests/cli/test_replay.py::test_what_cannot_be_asked_of_a_pool_is_one_sentence"
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
        proof="tests/cli/test_replay.py::test_a_scenario_is_written_once_and_never_over_a_file",
    ),
    Refusal(
        sentence="no scenario can be made: nothing is known of the core within 30 s of that moment",
        when="the run's log has nothing at that time",
        instead="a time that `pliant replay` shows",
        proof=f"{SCENARIOS}test_nothing_is_made_of_what_nobody_knows",
    ),
]
