"""The members of one generation, connected."""
