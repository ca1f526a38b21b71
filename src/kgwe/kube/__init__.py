"""Kubernetes: types of the API, client, CRDs, dialects of gangs, and the translation to placement's nouns.

Built on `model`, `placement` and `sharing`; its own layers are a contract in pyproject.toml.
"""
