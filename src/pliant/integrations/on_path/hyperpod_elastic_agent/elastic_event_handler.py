"""Gives scripts for HyperPod the function that they ask after each step."""

from __future__ import annotations

from pliant.integrations.hyperpod import elastic_event_detected

__all__ = ["elastic_event_detected"]
