"""Which scenario files live agents play, and what they do not say where a file has it.

The tests hold these tables to what is the case: a line that is not needed any more fails, too.
Lines are worded as ``support.notation`` does; ``+`` is what one says and the file does not.
"""

from __future__ import annotations

import re

SHELLS_DIFFER = re.compile(
    r"^at \S+ (restart|old |running |died |node-|node .*runs=|.*spoken_for=)", re.MULTILINE
)
"""Lines after which agents do more than pass on what they hear: a coordinator is replaced; an agent
falls silent, leaves, fails, comes back, lists what it runs or speaks for its worker; exits come
together.  A file with such a line is played with live agents, and so is one that a table of
theirs below names.
"""

ALSO_LIVE = {
    "a_busy_member_is_not_hung": "busy",
    "a_device_fails_behind_the_last_step": "exit device",
    "a_device_is_in_use_by_others": "exit taken",
    "a_host_refuses_its_replicas": "exit short",
    "a_killed_member_keeps_its_slots": "kill",
    "a_member_hangs_as_the_run_is_told_to_end": "stop pressed=",
    "a_script_without_a_session": "exit early",
    "a_slow_replica_of_a_job_that_stops_stays": "progressed slow=",
    "a_worker_keeps_its_replica_waiting": "progressed held_up_by=",
    "an_offer_without_one_device": "offer leave=",
    "members_of_one_host_are_beside_each_other": "spare host=",
    "nodes_that_do_not_reach_each_other": "broken unreached=",
    "replicas_spread_over_racks": "node labels=",
    "restore_skips_a_damaged_checkpoint": "unrestorable",
    "suspend_for_others": "suspend reason=",
    "wrong_input_of_the_user": "exit usage",
}
"""One file for each kind of line that none of those has: the line must cross the sockets, too."""

LOST_ORDERS = {
    "a_start_is_lost_and_then_not_wanted": ["start r2 on n1"],
    "a_start_is_lost_and_then_the_last_step_is_done": ["start r3 on n2"],
    "commands_are_lost_on_the_way": ["start r2 on n1", "start r3 on n2"],
    "restart_before_the_end_was_said": [
        "exit 1: after its last step, r2 failed: ValueError: no place"
    ],
    "restart_with_an_end_recorded_and_nobody_heard": [
        "end r1: the job ends",
        "end r2: the job ends",
        "exit 3: stopped on request, at once, after 0 steps",
    ],
}
"""What a live agent does not get, as the story of the file has it."""

_OLDER = "its agent is connected to the newer coordinator alone"
_GONE = "nobody says so whose process was reaped; live it is on its way meanwhile"
_TOO_OFTEN = "an agent answers each time that it is asked, and the file once"
_TOGETHER = "its coordinator sees that exits come together"
_MEANWHILE = "an agent reports what has ended while it was cut off; the file does without"

NOT_SAID_BY_AGENTS = {
    "a_device_is_not_healthy": {
        "node n1 devices=1 runs=r2": "an agent counts its devices once in its life",
    },
    "a_node_can_start_nothing": {
        "node n1 devices=0": "the core is not told of an agent that is back and runs nothing",
    },
    "a_node_has_fewer_devices_than_replicas": {
        "node n1 devices=1 runs=r1,r2": "an agent counts its devices once in its life",
    },
    "a_node_is_lost": {"switched 2 r2 step=3": "its node is lost; live it is on its way then"},
    "a_node_that_leaves_was_away_for_a_moment": {
        "node n1 devices=3 runs=r1,r2": "its connection has not broken here",
    },
    "a_spare_that_is_to_look_says_again_what_it_saw": {
        "node n2 devices=1 runs=r2": "its connection has not broken here",
    },
    "a_start_is_lost_and_then_not_wanted": {"+ exit r2 unknown": _TOO_OFTEN},
    "a_start_is_lost_and_then_the_last_step_is_done": dict.fromkeys(
        ["running n2", "exit r3 unknown"], "the order to start r3, said again, has arrived here"
    ),
    "a_stranger_asks_to_publish": {
        "publish-asked r9 checkpoint=step-5@5/1": "nobody has started that replica",
    },
    "all_die_before_the_first_step": {"progressed 1 r1 committed=1": _GONE},
    "commands_are_lost_on_the_way": {
        "running n1 runs=r1": "r2 has exited unnoticed, and an agent notices",
    },
    "policy_set_while_the_job_runs": {
        f"+ exit {name} signal SIGKILL": "it has no device yet: its agent reports its end at once"
        for name in ("r5", "r6")
    },
    "members_die_together": dict.fromkeys(["died r1 r3", "died r2 r4"], _TOGETHER),
    "restart_a_joiner_was_set_aside": {"+ exit r2 signal SIGKILL": _MEANWHILE},
    "restart_after_the_last_release": {
        "+ exit r1 finished": _TOO_OFTEN,
        '+ exit r2 script "OSError: no place"': _TOO_OFTEN,
    },
    "restart_and_the_end_of_a_leaver_comes_late": {"finished 9 r1": _GONE},
    "restart_finds_all_but_a_spare_lost_after_the_last_step": {
        "exit r1 unknown": "an agent says so only when it is asked, and the file does not ask",
    },
    "restart_finds_a_leaver_that_may_publish": {"+ exit r2 signal SIGKILL": _MEANWHILE},
    "restore_after_a_total_loss": {"saved r1 checkpoint=step-9@9/1": _GONE},
    "restore_looks_anew_before_it_gives_up": {
        "running n1 runs=r2": "the order to start r3 has arrived here",
        "+ exit r1 signal SIGKILL": _MEANWHILE,
    },
    "trace_04_two_coordinators": {"old broken 2 r2 reason=reset": _OLDER, "old tick": _OLDER},
    "trace_07_a_number_is_not_issued_again": {"+ exit r2 signal SIGKILL": _MEANWHILE},
    "trace_11_the_old_coordinator_writes_after_the_new_one": {
        "old exit r1 signal SIGKILL": _OLDER,
        "+ exit r1 signal SIGKILL": _MEANWHILE,
    },
    "trace_16_late_news_of_an_older_lineage": {
        "progressed 1 r1 committed=9": _GONE,
        "saved r1 checkpoint=step-9@9/1": _GONE,
    },
}
"""What no live agent says where the file has it: the coordinator is told directly."""
