"""The choice between equally good domains by what the gangs after this one could still use.

Used by `placement.gang` only.
"""
