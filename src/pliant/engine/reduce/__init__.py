"""Adding up gradients along the tree: buckets, partial sums, exchange."""
