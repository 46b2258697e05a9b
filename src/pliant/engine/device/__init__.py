"""Where tensors are: all that depends on it, so that the rest of the engine names no device."""
