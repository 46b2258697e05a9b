"""Versioned messages between coordinator, agent and worker, and the seams they cross."""
