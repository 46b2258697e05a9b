"""Ready-made models and data."""
