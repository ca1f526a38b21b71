"""MIG layouts: the graph of layouts, cheapest re-cuts, draining, and the life of an instance.

Pure. The MIG controller, the agent and the translators import it.
"""
