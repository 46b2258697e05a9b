"""Guards: what watches for differences between replicas that nobody would see otherwise."""
