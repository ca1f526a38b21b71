"""The optimizer: history of workloads, predictions over gRPC, and the waste detector."""
