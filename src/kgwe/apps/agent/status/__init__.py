"""The GPUNode: how its status follows from the machine, and how it is written to the API server."""
