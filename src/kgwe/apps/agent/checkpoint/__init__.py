"""Checkpoint orders: delivered to the pods of this node, and reported in its GPUNode."""
