"""KGWE: a GPU platform for Kubernetes.

The layers between its packages are contracts in pyproject.toml, checked by `make check`.
"""
