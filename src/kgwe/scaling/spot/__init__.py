"""Spot capacity: how long it lasts by what was observed, the risk of a gang, and jobs with a deadline."""
