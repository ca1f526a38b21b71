"""`python -m kgwe.cli`: the `kgwe` command where the script is not on PATH."""

from kgwe.cli.main import main

main()
