"""Stored plans as text: short enough for an annotation, and readable by people while they are small.

    n1=ff;n2=f/0@0,0@4                    version 1: up to 64 seats, one after the other
    2:h100-[0000-2047]=ff                 version 2: 2,048 seats, one on each node
    2:h100-[0000-0511]=1,2,4,8,10*2       version 2: six seats on each of 512 nodes
    2z:eJzT1dXVBQ…                        version 2, compressed: long plans on nodes whose names follow no rule

Version 2 is a list of runs. A run is a range of node names and the seats on each of these nodes, in rank order. A range
counts up or down through the last number of the name's first label, in steps of one; all its numbers have one width, or
no leading zeros. A seat is a mask of cards in hexadecimal, `/card@start+card@start` for MIG slices and `*3` for three
equal seats.

Anyone who may edit the object may edit the text. A text of more seats than a workload may have is refused before it is
expanded, and so is a compressed one that grows beyond the longest plan.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import re
import zlib
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.units.limits import MAX_GPUS_PER_NODE, MOST_PODS
from kgwe.placement.planning.plan import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: bytes of a stored plan. Kubernetes allows 256 KiB of annotations on one object; the rest is for the reasons of the
#: plan, notes of recovery and the annotations of other tools.
MOST_BYTES: Final = 208 * 1024
#: bytes of a plan at the start: recovery moves pods to nodes outside the ranges, which makes the text longer
MOST_BYTES_AT_START: Final = 176 * 1024
# Older schedulers read version 1 only, and had no larger plans.
_FIRST_VERSION_SEATS: Final = 64
_PLAIN, _PACKED = "2:", "2z:"
# Longer texts are compressed.
_PLAIN_BYTES: Final = 8 * 1024
# No plan of the most pods that fits an annotation is longer: 100,000 seats with names of 63 characters.
_MOST_UNPACKED: Final = 12 * 1024 * 1024
# Large plans that are kept decoded: a Job is read again with every change of its status.
_KEPT: Final = 8
_HEX: Final = 16

_NODE: Final = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
# Four cards to a digit.
_MASK: Final = f"[0-9a-f]{{1,{-(-MAX_GPUS_PER_NODE // 4)}}}"
_SLICE: Final = "[0-9]{1,3}@[0-9]{1,3}"
_FIRST: Final = re.compile(rf"(?P<node>{_NODE})=(?P<cards>{_MASK})(?:/(?P<slices>{_SLICE}(?:,{_SLICE})*))?")
_SEAT: Final = re.compile(
    rf"(?P<cards>{_MASK})(?:/(?P<slices>{_SLICE}(?:\+{_SLICE})*))?(?:\*(?P<times>[1-9][0-9]{{0,5}}))?"
)
_RANGE: Final = re.compile(r"(?P<head>[a-z0-9.-]*)\[(?P<first>[0-9]{1,9})-(?P<last>[0-9]{1,9})\](?P<tail>[a-z0-9.-]*)")
_NAME: Final = re.compile(_NODE)
# The last number of the first label; nine digits at most, so that a range is counted in small numbers.
_NUMBERED: Final = re.compile(r"(?P<head>(?:[^.]*[^.0-9])?)(?P<number>[0-9]{1,9})(?P<tail>[^.0-9]*(?:\..*)?)")


class PlanTooLarge(errors.Permanent):
    """The plan does not fit the annotation it is stored in."""


def encode(seats: Sequence[Seat], most_bytes: int = MOST_BYTES) -> str:
    """The plan as text; PlanTooLarge when it is longer than `most_bytes`."""
    if len(seats) <= _FIRST_VERSION_SEATS:
        text = ";".join(f"{seat.node}={_seat_text(seat, ',')}" for seat in seats)
    else:
        text = _PLAIN + ";".join(_runs_text(seats))
        if len(text) > _PLAIN_BYTES:
            text = _PACKED + base64.b64encode(zlib.compress(text.removeprefix(_PLAIN).encode(), 6)).decode()
    if len(text) > most_bytes:
        raise PlanTooLarge(
            f"its plan of {len(seats)} pods takes {len(text)} bytes; only {most_bytes} fit in its Job: give"
            " each pod more GPUs (gpusPerPod), or split the workload"
        )
    return text


def decode(text: str) -> tuple[Seat, ...]:
    """Seats of a stored plan; empty when it is none that we would write."""
    return _decode_kept(text) if text.startswith((_PLAIN, _PACKED)) else _decode_first(text)


@functools.lru_cache(_KEPT)
def _decode_kept(text: str) -> tuple[Seat, ...]:
    plain = text.removeprefix(_PLAIN) if text.startswith(_PLAIN) else _decompress(text.removeprefix(_PACKED))
    seats: list[Seat] = []
    for part in plain.split(";"):
        found = _parse_run(part, MOST_PODS - len(seats))
        if not found:
            return ()
        seats += found
    return tuple(seats)


def _decompress(text: str) -> str:
    try:
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_UNPACKED)
        return plain.decode("ascii") if unpacking.eof else ""
    except (binascii.Error, zlib.error, ValueError):
        return ""


# --- version 1 -------------------------------------------------------------------------------------------


def _decode_first(text: str) -> tuple[Seat, ...]:
    if text.count(";") >= MOST_PODS:
        return ()
    parts = [_FIRST.fullmatch(part) for part in text.split(";")]
    if not all(parts):
        return ()
    return tuple(
        Seat(part["node"], int(part["cards"], _HEX), _parse_slices(part["slices"], ",")) for part in parts if part
    )


def _seat_text(seat: Seat, between: str) -> str:
    slices = between.join(f"{card}@{start}" for card, start in seat.slices)
    return f"{seat.gpus:x}/{slices}" if slices else f"{seat.gpus:x}"


def _parse_slices(text: str | None, between: str) -> tuple[tuple[int, int], ...]:
    pairs = [each.split("@") for each in text.split(between)] if text else []
    return tuple((int(card), int(start)) for card, start in pairs)


# --- version 2, writing ----------------------------------------------------------------------------------


def _runs_text(seats: Iterable[Seat]) -> Iterator[str]:
    """Runs of nodes whose numbers follow each other and whose seats are alike."""
    run: list[str] = []
    alike, step = "", 0
    for node, text in _by_node(seats):
        by = _find_step(run[-1], node) if run and text == alike else 0
        if by and step in (0, by) and _is_one_row(run[0], node):
            step = by
            run.append(node)
            continue
        if run:
            yield f"{_range_text(run)}={alike}"
        run, alike, step = [node], text, 0
    if run:
        yield f"{_range_text(run)}={alike}"


def _by_node(seats: Iterable[Seat]) -> Iterator[tuple[str, str]]:
    """(node, its seats as text) for each run of consecutive ranks on one node."""
    for node, here in itertools.groupby(seats, key=lambda seat: seat.node):
        texts = itertools.groupby(_seat_text(seat, "+") for seat in here)
        counted = [(text, len(list(equal))) for text, equal in texts]
        yield node, ",".join(f"{text}*{times}" if times > 1 else text for text, times in counted)


@functools.lru_cache(4)
def _split_number(node: str) -> tuple[str, str, str] | None:
    found = _NUMBERED.fullmatch(node)
    return (found["head"], found["number"], found["tail"]) if found else None


def _find_step(node: str, following: str) -> int:
    """1 when the second name has the next number, -1 when it has the one before, else 0."""
    one, two = _split_number(node), _split_number(following)
    if one is None or two is None or (one[0], one[2]) != (two[0], two[2]):
        return 0
    step = int(two[1]) - int(one[1])
    return step if abs(step) == 1 else 0


def _is_one_row(first: str, last: str) -> bool:
    """Whether the numbers of two names are written alike: with the same width, or both without leading zeros."""
    one, two = _split_number(first), _split_number(last)
    if one is None or two is None:
        return False
    return len(one[1]) == len(two[1]) or not (one[1].startswith("0") or two[1].startswith("0"))


def _range_text(run: list[str]) -> str:
    first, last = _split_number(run[0]), _split_number(run[-1])
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first[0]}[{first[1]}-{last[1]}]{first[2]}"


# --- version 2, reading ----------------------------------------------------------------------------------


def _parse_run(text: str, most: int) -> list[Seat]:
    """The seats of one run; none when it is not one of ours, or has more than `most`."""
    names, _, places = text.partition("=")
    here = _parse_devices(places, most)
    nodes = _parse_nodes(names, most // len(here)) if here else []
    return [Seat(node, cards, slices) for node in nodes for cards, slices in here]


def _parse_devices(text: str, most: int) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    found: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    for part in text.split(","):
        seat = _SEAT.fullmatch(part)
        times = int(seat["times"] or 1) if seat else 0
        if seat is None or len(found) + times > most:
            return []
        found += [(int(seat["cards"], _HEX), _parse_slices(seat["slices"], "+"))] * times
    return found


def _parse_nodes(text: str, most: int) -> list[str]:
    span = _RANGE.fullmatch(text)
    if span is None:
        return [text] if most and _NAME.fullmatch(text) else []
    first, last = int(span["first"]), int(span["last"])
    step = 1 if last >= first else -1
    width = len(span["first"]) if span["first"].startswith("0") or span["last"].startswith("0") else 0
    if abs(last - first) >= most or (width and len(span["last"]) != width):
        return []
    nodes = [f"{span['head']}{number:0{width}}{span['tail']}" for number in range(first, last + step, step)]
    return nodes if all(map(_NAME.fullmatch, (nodes[0], nodes[-1]))) else []
