"""A breadth-first explorer of the membership protocol.

``process`` is a small model of one worker around the real ``core.membership.member``; ``world``
puts several of them, their channels and collectives, and the real coordinator's core together;
``search`` walks every state up to a bound and checks DESIGN 5.6 in each. ``python -m
tests.core.explorer --help``.
"""
