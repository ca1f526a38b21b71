"""`kgwe bench client`: KGWE's HTTP client compared with httpx2.

Only `kgwe.cli.bench` imports it.
"""
