"""Seeded faults of rules outside the core: what shells must do for the core to be right."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

_COORDINATOR = partial(Fault, room="coordinator", suite=("tests/coordinator",))
_TAKEOVER = partial(Fault, rule="R1", path="takeover.py", suite=("tests/core/test_takeover.py",))
_REGISTER = partial(_COORDINATOR, path="register.py")
_TRANSFER = partial(
    Fault,
    rule="5.5",
    room="engine/state",
    path="transfer.py",
    suite=("tests/engine/state/test_transfer.py",),
    old="stamp.generation, stamp.step, stamp.lineage, manifest, chunk)",
)
_BOUNDS = partial(
    Fault,
    rule="4",
    room="wire",
    path="bounds.py",
    suite=("tests/wire/test_bounds.py", "tests/wire/test_codec.py", "tests/fuzz"),
)
_PACKED = partial(
    Fault,
    rule="4",
    room="wire",
    path="packed_messages.py",
    suite=("tests/wire/test_packed_messages.py",),
)
_SAME = partial(
    Fault, rule="4", room="wire", path="same_words.py", suite=("tests/wire/test_same_words.py",)
)
_CONNECTIONS = partial(
    Fault,
    rule="4",
    room="http",
    path="connections.py",
    suite=("tests/http",),
)
_PRINTABLE = partial(
    Fault,
    rule="4",
    path="printable.py",
    suite=("tests/core/test_printable.py", "tests/observe"),
)
_LEASE = partial(Fault, rule="R20", room="checkpoint/lease", suite=("tests/checkpoint/lease",))
_UPLINK = partial(
    Fault,
    rule="R21",
    room="agent",
    path="uplink.py",
    suite=("tests/agent/test_uplink.py",),
)
_AGENT = partial(Fault, room="agent", path="agent.py", suite=("tests/conformance",))
_WORKERS = partial(
    Fault,
    rule="R14",
    room="agent",
    path="local_replica.py",
    suite=("tests/agent/test_local_replica.py",),
)

SHELL_FAULTS = [
    _PACKED(
        what="whatever is packed is unpacked",
        old="unpacking.decompress(data, MAX_MESSAGE_BYTES + 1)",
        new="unpacking.decompress(data)",
    ),
    _SAME(
        what="of two names in a message the first counts",
        old="    return all(data.count(key) <= 1 for key in _KEYS) and",
        new="    return",
    ),
    _COORDINATOR(
        rule="R11",
        path="held_core.py",
        what="who says that it has finished dies before that is heard",
        old="                spoken.add(event.replica)\n",
        new="                pass\n",
    ),
    _COORDINATOR(
        rule="R2",
        path="joint_answers.py",
        what="what comes while a Reform is recorded waits until it was sent",
        old="MOST_OVERTAKEN = 3\n",
        new="MOST_OVERTAKEN = 0\n",
    ),
    _COORDINATOR(
        rule="5.6",
        path="held_core.py",
        what="time passes before all is heard that was said by then",
        old="[*events, Ticked()] if is_all else list(events)",
        new="[*events, Ticked()]",
    ),
    _COORDINATOR(
        rule="R21",
        path="joint_answers.py",
        what="what comes while a Reform is recorded overtakes what was said before",
        old="            elif heard.later:",
        new="            elif False:",
    ),
    Fault(
        rule="R4",
        what="who has finished and meets others once more does not register as finished",
        room="engine/protocol",
        path="runtime.py",
        suite=("tests/engine/protocol/test_runtime.py",),
        old="spare=self._spare, finished=self._is_finishing\n",
        new="spare=self._spare, finished=self._is_finishing and member.reform is None\n",
    ),
    _COORDINATOR(
        rule="R2",
        what="an order that its coordinator could not log stays out of the log",
        path="driver.py",
        old="        write_unlogged_order(self.log, recorded, self.board.timeline)\n",
        new="",
    ),
    _AGENT(
        rule="5.3",
        what="the next coordinator does not hear that an agent leaves",
        old="        return [*said, *self._departure.words()]\n",
        new="        return said\n",
        suite=("tests/agent/test_agent.py",),
    ),
    _AGENT(
        rule="5.3",
        path="departure.py",
        what="an agent that leaves does not wait for its replicas",
        old="        while here() and not (ended",
        new="        while not here() and not (ended",
        suite=("tests/agent/test_agent.py",),
    ),
    _AGENT(
        rule="R6",
        what="of several replicas of a node the first alone hears an order",
        old="                for replica in command.to:\n",
        new="                for replica in command.to[:1]:\n",
    ),
    _AGENT(
        rule="R3",
        what="workers are told commands of another incarnation than their agent was",
        path="replicas_here.py",
        old="self._running[replica].send(command, incarnation)",
        new="self._running[replica].send(command, Incarnation(1))",
    ),
    _AGENT(
        rule="R11",
        what="an agent keeps the end of a replica to itself until it is asked",
        path="replicas_here.py",
        old="        if self.are_told:\n            self._send(exited)\n",
        new="",
    ),
    _AGENT(
        rule="R11",
        path="uplink.py",
        what="what an agent says arrives in another order",
        old="        self._queue.append(message)\n",
        new="        self._queue.appendleft(message)\n",
    ),
    Fault(
        rule="5.2",
        what="an order waits until the one before is acknowledged",
        room="http",
        path="server.py",
        suite=("tests/http/test_direct_socket.py",),
        old="socket.SOCK_STREAM, socket.IPPROTO_TCP)",
        new="socket.SOCK_STREAM)",
    ),
    _WORKERS(
        what="the other workers of a replica outlive one that was lost",
        old="        if len(self._exits) + 1 < len(self.workers):\n            self._kill()\n",
        new="",
    ),
    _WORKERS(
        what="a replica ends as its first worker does, whoever was the cause",
        old="        first = self._first or 0\n",
        new="        first = 0\n",
    ),
    _WORKERS(
        what="who has said why it ends, and is not gone yet, is no cause",
        old="                if kind not in ORDERLY:\n                    self._note_end(index)\n",
        new="                pass\n",
    ),
    _WORKERS(
        what="what every worker of a replica says of one failure is passed on",
        old="            case Traceback() | Usage() if len(self.workers) > 1:\n"
        "                self._last_words.setdefault(index, []).append(message)\n",
        new="",
    ),
    _WORKERS(
        what="a worker that ends in order ends the others before they have",
        old="        if exited.kind not in ORDERLY:\n            self._end_others(index)\n",
        new="        self._end_others(index)\n",
    ),
    _WORKERS(
        what="a replica lives as long as its first worker does",
        old="            case Progressed() if index or self._is_silent:\n",
        new="            case Progressed() if index:\n",
    ),
    _WORKERS(
        what="followers show life in the name of their replica",
        old="            case Progressed() if index or self._is_silent:\n",
        new="            case Progressed() if self._is_silent:\n",
    ),
    _WORKERS(
        what="where workers met stays",
        old="            shutil.rmtree(self._directory, ignore_errors=True)\n",
        new="            pass\n",
    ),
    _WORKERS(
        what="followers may speak for their replica",
        path="worker.py",
        old="_MAY_SAY_AS_FOLLOWER if is_follower(self.name) else _MAY_SAY",
        new="_MAY_SAY",
    ),
    _WORKERS(
        what="where workers met stays if their agent is killed",
        room="agent",
        path="launcher.py",
        suite=("tests/agent/test_launcher.py",),
        old="            self.ask(GuardFiles(paths=(str(self._meeting_place.path),)))\n",
        new="",
    ),
    _WORKERS(
        what="where workers met stays if their agent and their fork server are killed",
        room="agent",
        path="launcher.py",
        suite=("tests/agent/test_launcher.py",),
        old="        remove_abandoned()\n",
        new="",
    ),
    _WORKERS(
        what="where workers meet is removed while their agent lives",
        room="agent",
        path="meeting_place.py",
        suite=("tests/agent/test_meeting_place.py",),
        old="    return lives is False and not (tells and",
        new="    return True or (tells and",
    ),
    _WORKERS(
        what="where workers meet is removed by who cannot see their agent, which lives",
        room="agent",
        path="meeting_place.py",
        suite=("tests/agent/test_meeting_place.py",),
        old="        return _nobody_holds(path / HELD)\n",
        new="        return True\n",
    ),
    _WORKERS(
        what="where workers meet is removed by a machine of the same name, while their agent lives",
        room="agent",
        path="meeting_place.py",
        suite=("tests/agent/test_meeting_place.py",),
        old="    return lives is False and not (tells and",
        new="    return lives is False and not (False and",
    ),
    _WORKERS(
        what="where workers met stays if their whole namespace of processes is killed",
        room="agent",
        path="meeting_place.py",
        suite=("tests/agent/test_meeting_place.py",),
        old="    if lives is None and owner.is_of_this_boot and tells:\n",
        new="    if False:\n",
    ),
    _COORDINATOR(
        rule="R14",
        path="driver.py",
        what="a node has room for as many replicas as it has devices",
        old="        room = joined.devices // self._workers_per_replica\n",
        new="        room = joined.devices\n",
    ),
    _UPLINK(
        what="a coordinator is looked for no longer after the agent was stopped",
        old="    clock = Clock()  # what this process slept counts for nothing\n",
        new="    clock = Clock()\n        clock.now_s = __import__('time').monotonic\n",
    ),
    _UPLINK(
        what="an agent looks for a lost coordinator for ever",
        old="    ticking = asyncio.create_task(_tick(clock))\n",
        new="    ticking = asyncio.create_task(asyncio.sleep(0))\n",
    ),
    _REGISTER(
        rule="R1",
        what="a job is taken over by who has not the token of its agents",
        old='        if "token" in other:\n',
        new="        if False:\n",
    ),
    _COORDINATOR(
        rule="5.4",
        path="channel.py",
        what="a host that comes first turns away the one that coordinates",
        old="    await driver.nodes.may_come(joined)\n",
        new="",
    ),
    _COORDINATOR(
        rule="5.4",
        path="channel.py",
        what="an agent may come under the name of another node",
        old="    why = None if certified is None else misnamed(joined.node, certified)\n",
        new="    why = None\n",
    ),
    _REGISTER(
        rule="R1",
        what="the file of the register is not locked",
        path="register_places.py",
        old="        with held(self._lock):\n            if self.read()",
        new="        if True:\n            if self.read()",
    ),
    _REGISTER(
        rule="R1",
        what="a file of the register that another has made is taken for its own",
        path="register_places.py",
        old="            return fresh.samefile(target)\n",
        new="            return True\n",
    ),
    _REGISTER(
        rule="R1",
        what="a write is believed whose number was made and removed long ago",
        path="register_places.py",
        old="        if max(self._numbers()) > number + 1:\n",
        new="        if not self._numbers():\n",
    ),
    _REGISTER(
        rule="R1",
        what="the next file of the register is made whatever the last one says",
        path="register_places.py",
        old="        number, found = self._newest()\n        if found != expected:\n",
        new="        number, found = self._newest()\n        if found is expected is data:\n",
    ),
    _TAKEOVER(
        what="a host takes over from a coordinator that its own agent reaches",
        old="    if is_connected:\n",
        new="    if is_connected and watch is None:\n",
    ),
    _TAKEOVER(
        what="a host takes over from a coordinator that gives signs of life",
        old="    if found != watch.seen:\n",
        new="    if found is None:\n",
    ),
    _TAKEOVER(
        what="a place that refuses counts though the sign of its coordinator moves",
        old="        return Watch(seen=found, since_s=now_s, is_first=False)\n",
        new="        return replace(watch, seen=found, since_s=now_s, is_first=False)\n",
    ),
    _TAKEOVER(
        what="who has stepped down takes its own empty place for a loss",
        old="watch.gone_since_s is not None and not is_own:",
        new="watch.gone_since_s is not None:",
    ),
    _TAKEOVER(
        what="nobody takes over from a coordinator that is gone",
        old="    if still_s <= patience_s:\n",
        new="    if sign is not None or still_s <= patience_s:\n",
    ),
    _TAKEOVER(
        what="a coordinator that does not see its register keeps the job from others",
        old="    return num_candidates > 1 and unseen_s > STEP_DOWN_S\n",
        new="    return num_candidates > 1 and unseen_s > 1e9 * STEP_DOWN_S\n",
    ),
    _TAKEOVER(
        what="who has stepped down takes over again at once",
        old="    return Watch(since_s=now_s, is_first=False)\n",
        new="    return Watch(since_s=now_s)\n",
    ),
    _REGISTER(
        rule="R2",
        what="whatever is read after a write that failed is taken for its own",
        old="if failure is not None and await aside(self._stored.holds, register):\n"
        "                    expected = register",
        new="if failure is not None:\n"
        "                    expected = await aside(self._stored.read)",
    ),
    _REGISTER(
        rule="R2",
        what="a register that another has written alike is taken for its own",
        old="data is not None and self._is_own(data) and self._register_of(data) == register",
        new="data is not None and self._register_of(data) == register",
    ),
    _COORDINATOR(
        rule="R20",
        path="driver.py",
        what="the end of a job is told by a coordinator that was overtaken",
        old="isinstance(command, Publish | EndJob):  # R20",
        new="isinstance(command, Publish):  # R20",
    ),
    Fault(
        rule="R3",
        room="agent",
        path="uplink.py",
        suite=("tests/agent/test_agent.py",),
        what="an agent obeys an older coordinator",
        old="        if received.incarnation < self.incarnation:",
        new="        if received.incarnation < 0:",
    ),
    _TRANSFER(
        what="a chunk of another history has the same digest",
        new="stamp.generation, stamp.step, 0, manifest, chunk)",
    ),
    _TRANSFER(
        what="another chunk of the same bytes has the same digest",
        new="stamp.generation, stamp.step, stamp.lineage, manifest, 0)",
    ),
    Fault(
        rule="Pool",
        room="pool",
        path="recovery.py",
        suite=("tests/pool/test_recovery.py",),
        what="a process that was given the id of another inherits its devices",
        old="(known.pid, known.started) != (report.pid, started)",
        new="known.pid != report.pid",
    ),
    Fault(
        rule="Pool",
        room="agent",
        path="replicas_here.py",
        suite=("tests/agent/test_agent.py",),
        what="nobody hears that the device of a worker that could not be started is free",
        old="            self._let_go(name, not_started(name, str(error)))\n",
        new="            self._host.devices.leave(name)\n"
        "            self._running.pop(name, None)\n"
        "            self._report_exit(not_started(name, str(error)))\n",
    ),
    _LEASE(
        path="rules.py",
        what="a lease runs out when that of whoever waits for it would",
        old="    if still_for_s >= found.ttl_s:",
        new="    if still_for_s >= me.ttl_s:",
    ),
    _LEASE(
        path="holder.py",
        what="a lease that was removed goes on",
        old="    return found if found is not None and found.holder == held.holder else None",
        new="    return held if found is None or found.holder == held.holder else None",
    ),
    _LEASE(
        path="holder.py",
        what="a lease that was removed is still held",
        old="    return found is not None and found.holder == holder",
        new="    return found is None or found.holder == holder",
    ),
    _COORDINATOR(
        rule="R20",
        path="driver.py",
        what="a checkpoint is allowed by a coordinator that was overtaken",
        old="isinstance(command, Publish | EndJob):  # R20",
        new="isinstance(command, EndJob):  # R20",
    ),
    Fault(
        rule="R20",
        room="checkpoint",
        path="publisher.py",
        suite=("tests/checkpoint/test_writer.py",),
        what="a checkpoint is published without asking",
        old="        if not self.channel.may_publish(\n",
        new="        if False and not self.channel.may_publish(\n",
    ),
    _COORDINATOR(
        rule="5.4",
        path="nodes.py",
        what="an agent that is started anew is turned away",
        old="        if life.follows(joined.life):\n",
        new="        if True:\n",
    ),
    _COORDINATOR(
        rule="5.4",
        path="nodes.py",
        what="an agent that speaks loses its name to one that is started later",
        old="        elif await self.speaks(joined.node):\n",
        new="        elif False:\n",
    ),
    _COORDINATOR(
        rule="5.4",
        room="core",
        path="values.py",
        what="of two lives of an agent clocks say which came later",
        old="        if self.boot and self.boot == other.boot:\n",
        new="        if False:\n",
    ),
    _COORDINATOR(
        rule="5.4",
        path="driver.py",
        what="an agent that can start nothing says so to nobody",
        old="                self.put(NodeFailed(node=node, reason=reason))\n",
        new="                pass\n",
    ),
    Fault(
        rule="5.4",
        path="job/node_loss.py",
        suite=("tests/conformance",),
        what="replicas are started on a node that can start nothing",
        old="tx.job.nodes.put(event.node, 0))\n",
        new="tx.job.nodes)\n",
    ),
    Fault(
        rule="5.4",
        path="job/node_loss.py",
        suite=("tests/conformance",),
        what="a node that can start nothing ends a job that has others",
        old="    if any(tx.job.nodes.values()):\n        return\n    if not tx",
        new="    if not tx",
    ),
    Fault(
        rule="5.4",
        path="job/node_loss.py",
        suite=("tests/conformance",),
        what="what the only node has and no checkpoint has goes when its agent fails",
        old="    if not group.members(job.membership) or is_kept(job):\n        lifecycle",
        new="    if True:\n        lifecycle",
    ),
    Fault(
        rule="5.4",
        path="job/node_loss.py",
        suite=("tests/conformance",),
        what="a job that stops has failed when the agent of its only node fails",
        old="    if job.stage is Stage.STOPPING:\n        return\n    if not group",
        new="    if not group",
    ),
    _BOUNDS(
        what="a message may count below zero",
        old="least <= value <= most else",
        new="value <= most else",
    ),
    _BOUNDS(
        what="a message may count beyond what can be computed with",
        old="least <= value <= most else",
        new="least <= value else",
    ),
    _BOUNDS(
        what="a node may have any number of devices",
        old='most = MOST_DEVICES if key == "devices" else MOST',
        new="most = MOST",
    ),
    _BOUNDS(
        what="a duration may be no number, or have no end",
        old='        return None if 0 <= value <= MOST_S else f"',
        new='        return None if value not in (-1.0,) else f"',
    ),
    _BOUNDS(
        what="a replica may be called anything",
        old="        return REPLICA.fullmatch(text) is not None\n",
        new="        return True\n",
    ),
    _BOUNDS(
        what="a replica's number may have any length",
        old="r[1-9][0-9]{0,14}",
        new="r[1-9][0-9]*",
    ),
    _BOUNDS(
        what="a name may begin with good characters and go on with any",
        old="        return NAME.fullmatch(text) is not None or",
        new="        return NAME.match(text) is not None or",
    ),
    _BOUNDS(
        what="a name may have any length",
        old="[A-Za-z0-9._-]{0,252}",
        new="[A-Za-z0-9._-]*",
    ),
    _BOUNDS(
        what="what lies inside a message is not looked at",
        old='        return found and f"{key}.{found}"\n',
        new="        return None\n",
    ),
    _BOUNDS(
        what="what a list of a message holds is not looked at",
        old="        return next(filter(None, (_excess(key, item) for item in value)), None)\n",
        new="        return None\n",
    ),
    _CONNECTIONS(
        what="there is a place for all who come",
        old="        if len(others) > most_connections():\n",
        new="        if False:\n",
    ),
    _CONNECTIONS(
        what="a connection that is answered gives its place to a flood",
        old="key=lambda one: (one.is_answering, one.since_s)",
        new="key=lambda one: one.since_s",
    ),
    _CONNECTIONS(
        what="who has come last gives its place up",
        old="            min(crowd, key",
        new="            max(crowd, key",
    ),
    _CONNECTIONS(
        what="a request that never ends is waited for",
        old="        if left_s <= 0:\n",
        new="        if False:\n",
    ),
    _CONNECTIONS(
        what="an answer that nobody reads keeps its place",
        old="        patience_s = ANSWER_S if is_whole else REQUEST_S\n",
        new="        patience_s = 1e9 if is_whole else REQUEST_S\n",
    ),
    _CONNECTIONS(
        what="places do not depend on what descriptors there are",
        old="    return min(MOST_CONNECTIONS, max(descriptors // 4, 8))\n",
        new="    return MOST_CONNECTIONS\n",
    ),
    _CONNECTIONS(
        what="the connection of an agent ends for want of a request",
        old="        self._stop_waiting()\n        super().handle_websocket_upgrade(event)\n",
        new="        super().handle_websocket_upgrade(event)\n",
    ),
    _PRINTABLE(
        what="escape sequences pass",
        old='\\x08\\x0b-\\x1f\\x7f-\\x9f"',
        new='\\x08"',
    ),
    _PRINTABLE(
        what="text may change the direction of a line",
        old='    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"',
        new='    ""',
    ),
    _PRINTABLE(
        what="half a character passes",
        old='    "\\ud800-\\udfff]"',
        new='    "]"',
    ),
    _PRINTABLE(
        what="a text passes for a line of ours",
        old='    return printable(text).replace("\\n", " ").strip()\n',
        new="    return printable(text).strip()\n",
    ),
    _PRINTABLE(
        what="what lies inside a value is not made printable",
        old="            return [printable_values(item) for item in value]\n",
        new="            return list(value)\n",
    ),
    _PRINTABLE(
        what="names inside a value are not made printable",
        old="{printable_values(key): printable_values(item)",
        new="{key: printable_values(item)",
    ),
]
