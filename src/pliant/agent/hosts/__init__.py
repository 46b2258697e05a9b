"""Several hosts that together run the workers of a replica: a leader host and its members."""
