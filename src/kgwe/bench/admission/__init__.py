"""Benchmark of admission: what the policy and the webhook add to the creation of a pod, and faults of the webhook.

Imported by `kgwe.cli.bench` only.
"""
