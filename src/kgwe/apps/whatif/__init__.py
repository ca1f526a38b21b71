"""Questions about the cluster as it is, answered from one reading of the API: without a scheduler, without a write."""
