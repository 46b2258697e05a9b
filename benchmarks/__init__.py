"""Benchmarks: what a resize, a step, a start and a checkpoint cost, beside DDP and torchrun.

Run one with ``python -m benchmarks.steady`` (or ``resize``, ``startup``, ``checkpoint``); each
writes a dated page to ``benchmarks/results/``.
"""
