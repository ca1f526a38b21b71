"""Status of KGWE's own objects, Events about externally created gangs, and periodic reports.

Part of the scheduler; the leader loop imports it.
"""
