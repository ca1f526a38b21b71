"""Types of KGWE's own custom resources.

Part of `kube.api`; the CRDs are generated from them.
"""
