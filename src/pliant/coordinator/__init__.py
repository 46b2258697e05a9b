"""One per job: a shell around the pure controller."""
