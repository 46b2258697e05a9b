"""Restart mode: scripts as they are, whose processes are started again at each change of size."""
