"""Writing decision records without delaying decisions.

Part of the scheduler; planning and the extender import it.
"""
