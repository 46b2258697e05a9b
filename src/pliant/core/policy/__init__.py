"""How many replicas a job should have, and when that may change."""
