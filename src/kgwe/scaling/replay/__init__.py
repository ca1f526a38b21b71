"""Replays of recorded allocations: what the same pods would have cost on a fleet bought and placed otherwise."""
