"""`kgwe defrag`: plans and executes moves of running pods that let a waiting gang start.

It reads the cluster once and writes only in `apply`. Only the command line imports it.
"""
