"""Joint plans of gangs that wait together, and the choice between equally good places for the gangs that follow.

Used by `placement.gang` only.
"""
