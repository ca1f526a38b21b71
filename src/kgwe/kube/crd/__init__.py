"""CustomResourceDefinitions and their reference documentation, generated from the types.

Used by the command line and the local cluster.
"""
