"""This worker's part in the membership protocol, and how the workers of a replica act as one."""
