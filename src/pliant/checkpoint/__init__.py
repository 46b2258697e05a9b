"""Durable state: checkpoints in PyTorch's distributed format, on a directory or an object store.

storage > local, objects       where bytes are kept
layout, manifest               names, the division into shares, what a checkpoint consists of
archives, pickles, index       PyTorch's format, without running what it says
shares                         writing together: write_share, present, publish, discard
read                           open_checkpoint, load, nested
catalogue                      listed, newest, verify, prune, sweep, copy_to
lease > lease_rules            one job per root: acquire, beat, still_held, release
compare, export, bench         for people
"""
