"""The admission webhook: smaller requests and seats for pods while they are created, and KGWE's certificates."""
