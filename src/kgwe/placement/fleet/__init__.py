"""Nodes, their constraints and taints, and the snapshot that placement decides on.

The lowest package of `placement`.
"""
