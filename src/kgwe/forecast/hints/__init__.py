"""Placement hints: what is forecast about a pod on each node, as points for the engine. Pure.

A hint is an array over the nodes of a snapshot: -10..+10 points, 0 where nothing is known.
"""
