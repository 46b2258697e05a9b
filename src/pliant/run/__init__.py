"""What a command hosts: a coordinator, one agent, both, a pool, a job in a pool."""
