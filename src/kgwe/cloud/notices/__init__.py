"""Interruption notices that an instance reads from its own metadata service, one module per cloud.

The agent imports it. No cloud SDK is needed.
"""
