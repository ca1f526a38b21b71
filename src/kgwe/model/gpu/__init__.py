"""One machine's GPUs: catalog of models, MIG geometry, topology, bandwidth, and the driver's data.

Pure; every layer above may import it.
"""
