"""Decision records on disk: their lines, how values are written, and how free capacity is followed.

Built on `placement`. The scheduler writes records, the simulator and `kgwe replay` read them.
"""
