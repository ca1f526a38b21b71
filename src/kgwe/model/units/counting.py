"""Numbers with their nouns, in messages for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`; nouns whose plural takes an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
