"""This worker's runtime of the membership protocol."""
