"""Container images: built from Debian packages and wheels as OCI layouts, without a container engine, and pushed.

Only `kgwe.cli` imports this package.
"""
