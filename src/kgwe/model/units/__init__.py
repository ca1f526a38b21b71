"""Quantities of Kubernetes, resource lists, back-off and counters.

The lowest package of `model`; everything may import it.
"""
