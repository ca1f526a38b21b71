"""Reconciliation of GPUWorkloads: start, status, retries and rejected pods.

Part of the scheduler; the leader loop imports it.
"""
