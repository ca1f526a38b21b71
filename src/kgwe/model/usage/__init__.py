"""GPU usage of pods over time, and the history of workloads with the same fingerprint.

Pure. Metric sources and the store write these nouns; forecasts and the waste detector read them.
"""
