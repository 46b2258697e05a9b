"""Seeded faults of hosts that become one node: who is joined with whom, and who is told."""

from __future__ import annotations

from functools import partial

from tools.faults import Fault

_RULE = partial(
    Fault, rule="Joint", path="joint_nodes.py", suite=("tests/core/test_joint_nodes.py",)
)
_SHELL = partial(
    Fault,
    rule="Joint",
    room="coordinator",
    path="joint_hosts.py",
    suite=(
        "tests/coordinator/test_joint_hosts.py",
        "tests/coordinator/test_joint_hosts_attacked.py",
    ),
)
_DRIVER = partial(_SHELL, path="driver.py")
_AGENT = partial(
    Fault,
    rule="JointHosts",
    room="agent",
    path="joint_node.py",
    suite=("tests/agent/test_joint_node.py",),
)

JOINT_FAULTS = [
    _RULE(
        what="a host is in two nodes",
        old="        left = [node for node in left if node not in chosen]\n",
        new="        left = left[1:]\n",
    ),
    _RULE(
        what="a host that is of a node is looked at again with those farther away",
        old="        left = [one for one in left if one.node not in taken]\n",
        new="",
    ),
    _RULE(
        what="two that failed are joined before their time",
        old="if now_s < one.until_s}",
        new="if False}",
    ),
    _RULE(
        what="only the first host of a node must not be apart from the others",
        old="        if apart:\n",
        new="        if apart and not before:\n",
    ),
    _RULE(
        what="who has few to choose from chooses last",
        old="key=lambda one: (-barred[one.node],",
        new="key=lambda one: (barred[one.node],",
    ),
    _RULE(
        what="a host without room for its part is joined",
        old="    left = [one for one in lone if rule.room(one.devices) > 0]\n",
        new="    left = list(lone)\n",
    ),
    _RULE(
        what="racks do not matter",
        old="    return (lambda one: (site(one), room(one)), site, room, lambda one: None)\n",
        new="    return (room, lambda one: None)\n",
    ),
    _RULE(
        what="nobody is joined over racks",
        old="site, room, lambda one: None)\n",
        new="site)\n",
    ),
    _RULE(
        what="devices do not matter",
        old="    return (lambda one: (site(one), room(one)), site, room, lambda one: None)\n",
        new="    return (site, lambda one: None)\n",
    ),
    _RULE(
        what="the same one is the head again",
        old="sorted(named, key=lambda node: (tried[node], node))",
        new="sorted(named)",
    ),
    _RULE(
        what="both reports of one attempt count",
        old="        if known.is_open:\n",
        new="        if True:\n",
    ),
    _RULE(
        what="what a coordinator before has tried does not count",
        old="PairTry(is_open=True))  #",
        new="PairTry())  #",
    ),
    _RULE(
        what="the pause of two has no end",
        old="times, 30), MOST_PAUSE_S)",
        new="times, 30), math.inf)",
    ),
    _RULE(
        what="the pause of two does not grow",
        old="found[pair] = PairTry(times + 1, now_s + pause_s",
        new="found[pair] = PairTry(times, now_s + pause_s",
    ),
    _RULE(
        what="of two parts the same one always awaits the other",
        old="is_open=True, awaits=one)",
        new="is_open=True, awaits=joint.head)",
    ),
    _RULE(
        what="two that were one for a moment begin anew",
        old="    return {**tries, **{pair: replace(one, joined_s=now_s) for",
        new="    return {**tries, **{pair: PairTry(joined_s=now_s, is_open=True) for",
    ),
    _RULE(
        what="two that were one for long are left alone as those who never were",
        old="            times = 0 if is_steady else known.times\n",
        new="            times = known.times\n",
    ),
    _RULE(
        what="hosts that come together are not waited for",
        old="    settled_s = [min(max(new) + SETTLE_S, min(new) + MOST_SETTLE_S)] if new else []\n",
        new="    settled_s = [min(new)] if new else []\n",
    ),
    _RULE(
        what="while hosts go on coming none is joined",
        old="[min(max(new) + SETTLE_S, min(new) + MOST_SETTLE_S)]",
        new="[max(new) + SETTLE_S]",
    ),
    _RULE(
        what="two that failed are never looked at again",
        old="*(at_s for at_s in lapses if at_s > looked_s)]",
        new="]",
    ),
    _RULE(
        what="a search may last for ever",
        old=" or looks[0] < 0:",
        new=":",
    ),
    _SHELL(
        what="hosts are told while another coordinator may have taken over",
        old="            await confirm()\n",
        new="            pass\n",
    ),
    _SHELL(
        what="a register that cannot be seen ends the job",
        old="            except OSError as error:\n",
        new="            except FileNotFoundError as error:\n",
    ),
    _SHELL(
        what="who goes meanwhile is told",
        old="            if all(map(self._is_alone, joint.hosts)):",
        new="            if True:",
    ),
    _SHELL(
        what="a host that was told can be told again",
        old="            self._hosts[node].alone = None\n",
        new="            pass\n",
    ),
    _SHELL(
        what="all attempts have one secret",
        old="            secret=secrets.token_hex(SECRET_BYTES),\n",
        new='            secret=f"{hash(SECRET_BYTES):064x}",\n',
    ),
    _SHELL(
        what="a host without a connection is told",
        old="host.alone is not None and self._nodes.is_connected(node)\n        ]",
        new="host.alone is not None\n        ]",
    ),
    _SHELL(
        what="what a host has said on a connection before counts",
        old="known.labels, known.alone, self._due_s = joined.labels, None, None\n",
        new="known.labels, self._due_s = joined.labels, None\n",
    ),
    _SHELL(
        what="the word of an agent before counts",
        old="        if known is not None and known.life != joined.life:\n",
        new="        if False:\n",
    ),
    _SHELL(
        what="a head's word counts against that of its part",
        old="(host.alone is None and host.head in",
        new="(host.head in",
    ),
    _SHELL(
        what="what failed is not known the next time",
        old="        self._tries = tries\n",
        new="",
    ),
    _SHELL(
        what="of hosts that are gone everything is kept",
        old="            self._forget_gone()\n",
        new="",
    ),
    _SHELL(
        what="a connection that was broken is news",
        old="        if self._joint.get(head) != joint:\n",
        new="        if True:\n",
    ),
    _SHELL(
        what="a host that is alone is of its node as well",
        old="        self._lose(said.node, now_s)\n",
        new="",
    ),
    _SHELL(
        what="a head's word counts against that of a part of another one",
        old='and host.head in ("", head))',
        new=")",
    ),
    _SHELL(
        what="a part that says late of which node it is makes it none",
        old="            self._believe(NodeId(facts.head), now_s)\n",
        new="            if facts.head == node:\n                self._believe(node, now_s)\n",
    ),
    _SHELL(
        what="two that have lost each other are joined again at once",
        old="            if node in joint.hosts and len(joint.parts) == 1:\n",
        new="            if False:\n",
    ),
    _DRIVER(
        what="the core does not hear that an agent has other devices",
        old="        if joined.replicas or not is_known:\n",
        new="        if joined.replicas or life != joined.life:\n",
    ),
    _DRIVER(
        what="the core hears of an agent on each connection",
        old="        if joined.replicas or not is_known:\n",
        new="        if True:\n",
    ),
    _DRIVER(
        what="nobody looks which hosts can be joined",
        old="await self._joint_hosts.join_due(now_s, self._register.confirm, self.incarnation)",
        new="pass",
    ),
    _AGENT(
        what="a head is let in that does not know the secret",
        path="host_listener.py",
        old='hmac.compare_digest(said, proof(told.secret, "head", told.head, *shown))',
        new="said",
    ),
    _AGENT(
        what="a part is let in that does not know the secret",
        path="host_listener.py",
        old='hmac.compare_digest(shown, proof(told.secret, "part", told.head, *known))',
        new="shown",
    ),
    _AGENT(
        what="the head goes on listening",
        path="host_listener.py",
        old="        self.close()\n        return dict(came)\n",
        new="        return dict(came)\n",
    ),
    _AGENT(
        what="strangers who connect to a head are not limited",
        path="host_listener.py",
        old="            self._others.pop(0).transport.abort()\n",
        new="            pass\n",
    ),
    _AGENT(
        what="parts need not reach each other",
        path="joint_head.py",
        old="        if len(links) == 1:\n",
        new="        if True:\n",
    ),
    _AGENT(
        what="parts that have lost each other go on",
        path="joint_peers.py",
        old="        self._on_lost()\n",
        new="        pass\n",
    ),
    _AGENT(
        what="a part does not say which other one it does not reach",
        path="joint_node.py",
        old="        self._missed = (*peers.missed, ",
        new="        self._missed = (*(), ",
    ),
    _AGENT(
        what="nobody notices that the other end is silent",
        path="host_link.py",
        old="        while self._silence < SILENT_LOOKS:\n",
        new="        while True:\n",
    ),
    _AGENT(
        what="a part whose link has ended lets its workers live",
        path="joint_part.py",
        old="            replica.kill(is_asked=True)\n        while self._replicas:\n",
        new="            del replica\n        while False:\n",
    ),
    _AGENT(
        what="the workers of a lost host never count as ended",
        path="joint_node.py",
        old="            workers.lose(link)\n",
        new="            pass\n",
    ),
    _AGENT(
        what="a kill does not reach other hosts",
        path="local_replica.py",
        old="            part.say(KillPart(replica=self.name, is_asked=is_asked))\n",
        new="            pass\n",
    ),
    _AGENT(
        what="a tunnel is sent more than it asks for",
        path="tunnels.py",
        suite=("tests/agent/test_tunnels.py",),
        old="            while stream.room <= 0:\n",
        new="            stream.room = PIECE_BYTES\n            while False:\n",
    ),
    _AGENT(
        what="ledgers that a link swallowed are not told again",
        path="joint_node.py",
        old="        self._host.job.tell_again()\n",
        new="",
    ),
    _AGENT(
        what="a part that is told to end goes at once",
        path="joint_node.py",
        old="        part.link.say(PartLeaving(notice_s=notice_s))\n",
        new="        return\n",
    ),
]
