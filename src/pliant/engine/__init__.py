"""Inside the worker: session, slots, exact reduction, groups, state transfer."""
