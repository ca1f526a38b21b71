"""Decision records on disk: their lines, the encoding of values, and the tracking of free capacity.

Built on `placement`. The scheduler writes records, the simulator and `kgwe replay` read them.
"""
