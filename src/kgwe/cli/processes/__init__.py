"""Subcommands that run a process of KGWE, or query a running one: scheduler, controller, agent and MIG controller.

Only the `kgwe` command imports it.
"""
