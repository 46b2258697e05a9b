"""One per node: starts, watches and ends workers."""
