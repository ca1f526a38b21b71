"""Commands of `kgwe local` that run other processes beside the control plane: Prometheus, and a real node."""
