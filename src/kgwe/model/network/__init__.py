"""The network as a tree of domains, and the node labels it is read from.

Pure; every layer above may import it.
"""
