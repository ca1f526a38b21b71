"""Metering: which pod holds what on a node at each moment, divided exactly and written as segments of constant cost."""
