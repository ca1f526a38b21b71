"""The history of workloads: from pods and usage to runs, peaks and out-of-memory facts.

Imported by the optimizer only.
"""
