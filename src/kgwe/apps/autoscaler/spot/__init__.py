"""Spot nodes of a policy: what was observed of them, and the choice between spot, waiting and on-demand."""
