"""One job: its controller, its life cycle and its replicas."""
