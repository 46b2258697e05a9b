"""The commands people type; the only reader of argv and the environment."""
