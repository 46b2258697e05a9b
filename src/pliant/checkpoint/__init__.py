"""Durable state: checkpoints in PyTorch's distributed format, on a directory or an object store.

checkpoint                     what a script says, and a session's way to the parts below
writer > publisher, snapshot   when there is a save, and how one is brought to storage
store/                         where bytes are kept: base, directory, objects, open
dcp/                           PyTorch's format: layout, manifest, pickles, index
  shares, read                 writing together; open_checkpoint, load
catalogue                      listed, verify, prune, sweep
lease                          one job per root
export, starting_weights   for people

Whatever is given a storage raises ``StorageError`` if that refuses, and whatever reads a checkpoint
``DamagedError`` if it is not what was written; the docstrings name what else may be raised.
"""
