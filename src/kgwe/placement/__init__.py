"""Where pods go: pure decisions on snapshots of a fleet. No I/O, no clock, no logging.

Built on `model`; its own layers are a contract in pyproject.toml. Everything above may import it.
"""
