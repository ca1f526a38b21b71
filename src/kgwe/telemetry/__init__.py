"""The self-reporting of a process: logs, metrics, traces, probes, and the HTTP server for them.

Built on `kgwe.errors`; the apps import it.
"""
