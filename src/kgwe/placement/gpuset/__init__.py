"""Sets of GPUs in one machine as bit masks: their topology score and what choosing them leaves over.

Built on `placement.fleet`; the packages above it in `placement` import it.
"""
