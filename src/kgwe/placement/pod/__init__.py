"""Placing one pod: which nodes fit, their scores, and what is short.

Built on `placement.gpuset` and `placement.fleet`.
"""
