"""Replay: deciders driven by traces and simulated time, no cluster needed."""
