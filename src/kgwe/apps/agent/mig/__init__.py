"""MIG: brings the GPUs of the node to the layouts that the GPUNode asks for."""
