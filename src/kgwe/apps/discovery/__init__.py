"""What the control plane knows of GPU nodes: GPUNode objects, how fresh they are, and agents asked directly."""
