"""Interruption notices: read from the cloud's metadata service, and written to the Node."""
