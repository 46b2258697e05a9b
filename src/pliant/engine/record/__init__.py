"""What a run's script reads and writes outside of steps, and the texts that it began with."""
