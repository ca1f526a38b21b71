"""Placing a gang: its request, the search over topology levels, the ranks and the predicted bandwidth.

Built on `placement.pod` and below.
"""
