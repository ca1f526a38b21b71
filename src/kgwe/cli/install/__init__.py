"""Subcommands that install KGWE: kinds and container images."""
