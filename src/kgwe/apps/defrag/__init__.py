"""`kgwe defrag`: which running pods to move so that a waiting gang can start, and moving them.

It reads the cluster once and writes only when told to. Only the command line may import it.
"""
