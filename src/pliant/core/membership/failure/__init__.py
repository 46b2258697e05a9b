"""Whom a job loses, and why: silence, hangs, and groups that cannot be built."""
