"""The `kgwe` command: one module per subcommand.

The top layer; nothing imports it.
"""
