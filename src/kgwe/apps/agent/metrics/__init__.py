"""Metrics of the GPUs and of the agent, and what is gathered around the driver for them."""
