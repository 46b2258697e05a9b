"""Benchmarks: what a resize, a steady step and a start cost, beside DDP and torchrun.

Run one with ``python -m benchmarks.steady`` (or ``resize``, ``startup``, ``checkpoint``); each writes a dated
page to ``benchmarks/results/``.
"""
