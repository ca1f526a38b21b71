"""The local cluster: a real Kubernetes control plane on this machine, with a simulated GPU fleet."""
