"""Public helpers for tests: clocks, scenario player, fault injection."""
