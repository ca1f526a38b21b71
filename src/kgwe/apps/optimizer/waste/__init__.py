"""The waste detector's work on a cluster: judging, checking advice with the engine, reporting, acting on idle GPUs.

Imported by the optimizer only.
"""
