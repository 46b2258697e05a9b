"""A breadth-first explorer of the membership protocol.

``world`` is a state of everything, ``process`` a small model of one worker in it, and ``universe``
what stays the same.  The environment (``coordinator``, ``workers``, ``checkpoints``) takes steps
around the real cores; ``generator`` lists which of them are possible next; ``checks`` holds the
invariants of DESIGN 5.6.  ``search`` walks every state up to a bound.

    python -m tests.core.explorer --help
"""
