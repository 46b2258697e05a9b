"""Settings of the property tests: no deadline per example, which a busy machine would miss."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("core", deadline=None)
settings.load_profile("core")
