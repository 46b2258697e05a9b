"""Public helpers for tests: fault injection."""
