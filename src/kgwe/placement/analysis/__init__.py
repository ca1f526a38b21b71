"""Measures of placements already made, such as regret.

The top of `placement`; the advisor imports it.
"""
