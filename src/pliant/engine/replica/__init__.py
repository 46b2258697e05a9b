"""A replica of several workers: worker 0 speaks for it, the others follow it in lockstep."""
