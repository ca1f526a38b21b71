"""Types of the Kubernetes API that KGWE reads and writes, and the table of resources.

The lowest package of `kube`; everything above may import it.
"""
