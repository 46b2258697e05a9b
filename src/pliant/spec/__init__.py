"""The job spec: one model for the YAML file, the REST body and later the CRD."""
