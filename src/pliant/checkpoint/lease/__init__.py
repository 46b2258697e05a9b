"""The lease of a checkpoint root: it belongs to one job at a time."""
