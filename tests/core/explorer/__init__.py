"""A breadth-first explorer of the membership protocol.

``world`` is a state of everything, ``process`` a small model of one worker in it, and ``universe``
what stays the same.  The environment (``coordinator``, ``workers``, ``checkpoints``) takes steps
around the real cores; ``generator`` and ``faults`` list which are possible next; ``checks`` has the
invariants of the protocol.  ``search`` visits every state up to a bound, ``walk`` goes at random
through what is too large for that.  ``docs/explanation/explorer.md`` says what can happen.

    python -m tests.core.explorer --help
"""
