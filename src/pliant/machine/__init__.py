"""What one machine gives: files, locks, processes, a clock, and who serves on it."""
