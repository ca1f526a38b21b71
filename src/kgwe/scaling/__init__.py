"""Scaling: which nodes to buy, which to remove, and when spot is worth its risk. Pure decisions, no cloud."""
