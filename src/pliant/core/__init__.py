"""What decides: pure state machines and arithmetic on the standard library alone."""
