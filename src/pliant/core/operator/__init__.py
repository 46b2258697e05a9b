"""The operator's decisions for one job on Kubernetes; no request is made here."""
