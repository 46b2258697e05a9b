"""Simulates a cluster: months of jobs, nodes and load in seconds, decided by the core that runs."""
