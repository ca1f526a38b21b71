"""This machine: paths, locks, ports, processes and progress messages.

The lowest package of `local`.
"""
