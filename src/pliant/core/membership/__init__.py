"""Who trains together: the coordinator's half of the protocol and the worker's."""
