"""Health of the GPUs: the monitor, its form in the GPUNode, and the condition of the Node."""
