"""GPU readings over time: samples, windows, rates, and the attribution of usage to pods.

Pure. Built on `model.gpu`; every layer above may import it.
"""
