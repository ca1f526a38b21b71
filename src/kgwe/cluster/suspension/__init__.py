"""Suspending and restoring owners of pods: annotations that record it, the search for the owner, and the writes.

Used by the optimizer, `kgwe idle` and the messages of the scheduler.
"""
