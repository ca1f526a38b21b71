"""The autoscaler: buys nodes for workloads that found no place, and removes nodes that nothing needs."""
