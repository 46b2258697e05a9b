"""Which samples and which random numbers each slot has."""
