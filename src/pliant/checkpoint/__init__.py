"""Durable state: checkpoints in PyTorch's distributed format, on a directory or an object store."""
