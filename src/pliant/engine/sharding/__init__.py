"""A model that is divided over the workers of a replica: FSDP2, tensor parallelism, stages."""
