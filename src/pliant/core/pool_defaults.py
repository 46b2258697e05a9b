"""What every pool has, and what whoever names nothing gets.

Owns names and numbers only, so that a command can say them without the allocation's code.
"""

from __future__ import annotations

DEFAULT_POOL = "default"
"""Name of a pool that was given none."""

DEFAULT_TEAM = "default"
"""The team that is always there, without a quota: it may use everything that nobody is owed."""

DEFAULT_CLASS = "normal"

CLASS_VALUES = {"urgent": 1000, "high": 100, DEFAULT_CLASS: 0, "low": -100}
"""Priority classes that every pool begins with; a file may give them other values."""
