"""Joint plans of waiting gangs, and the choice between equally good places with regard to the gangs that follow.

Used by `placement.gang` only.
"""
