"""A real Prometheus beside a local cluster: its binary, its configuration and its process."""
