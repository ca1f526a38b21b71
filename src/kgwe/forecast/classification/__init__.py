"""The class of a workload, by transparent rules. Pure."""
