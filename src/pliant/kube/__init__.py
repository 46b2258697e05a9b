"""Kubernetes: the operator of ElasticJobs, and whoever else of pliant asks an API server."""
