"""What one step consists of: slots, samples and seeds."""
