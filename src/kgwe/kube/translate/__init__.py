"""From API objects to placement's nouns: nodes, topology, pod requests, health.

Built on `kube.api`; does no I/O and does not import the client.
"""
