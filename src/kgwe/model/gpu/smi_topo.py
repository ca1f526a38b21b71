"""Read what `nvidia-smi topo -m` prints.

    \tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
    GPU0\t X \tNV12\tPXB\t0-23,48-71\t0\t\tN/A
    GPU1\tNV12\t X \tSYS\t24-47,72-95\t1\t\tN/A
    mlx5_0\tPXB\tSYS\t X

    NIC Legend:
      NIC0: mlx5_0

The text reaches us in every state: straight from the tool with tabs and underlining, or copied through a chat
with the tabs turned into spaces, a prompt before it and the legend cut off. So cells are words, whatever is
between them; everything before the heading and after the rows is skipped, but for the names of NICs.
Affinity columns may be missing, empty, or `N/A`. Only tabs tell which cell is empty; in a row with spaces and too few
affinities, all of them stay unknown.

What the table does not say stays unknown: bus ids, the generation of NVLink (give the model of the GPU if you
know it), and the PCIe path under an NVLink. Part of the last can be told from the NICs: two GPUs that
are each one switch away from the same NIC share that switch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.model.gpu.topology import MAX_DEVICES, Nic, Relation, Slot, Wiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kgwe.model.gpu.catalog import GpuModel

# Colours and underlines.
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU: Final = re.compile(r"GPU\d+", re.ASCII)
_NVLINK: Final = re.compile(r"NV(\d{1,3})", re.ASCII)
_CPUS: Final = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)
_AFFINITY_HEADINGS: Final = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_NIC_NAME: Final = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*", re.ASCII)

_WORDS: Final = {
    **{relation.value: relation for relation in Relation if relation is not Relation.NVLINK},
    "SOC": Relation.SYS,  # before driver 384
    "N/A": Relation.UNKNOWN,
}

# No GPU has more NVLinks than this (H100, B200): where more seem to lead away from one, a switch is between.
_MOST_LINKS: Final = 18


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    name: str
    cells: tuple[str, ...]
    tail: tuple[str, ...]


def parse_smi_topology(text: str, *, model: GpuModel | None = None) -> Wiring:
    """The wiring the table shows; `model` says which GPUs they are, for the table does not."""
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    heading, devices, affinities = _heading(lines)
    rows = _rows(lines, heading, devices, len(affinities))
    gpus = [i for i, device in enumerate(devices) if _GPU.fullmatch(device)]
    others = [i for i, device in enumerate(devices) if i not in set(gpus)]
    seen, links = _between_gpus([rows[devices[gpu]] for gpu in gpus], gpus)
    nics_seen = tuple(tuple(_relation(rows[devices[gpu]], nic, devices[nic]) for gpu in gpus) for nic in others)
    names = dict(_nic_names(lines[heading:]))
    slots = tuple(_slot(rows[devices[gpu]], affinities) for gpu in gpus)
    nvlinks = _nvlinks(len(gpus), links, model)
    return Wiring(
        slots=slots,
        nvlink_version=model.nvlink_version if model and links else 0,
        switch_links=nvlinks.switch,
        mesh=nvlinks.mesh,
        nics=tuple(Nic(names.get(devices[nic], devices[nic]), 0) for nic in others),
        links_down=nvlinks.down,
        seen=_under_nvlink(seen, nics_seen),
        nics_seen=nics_seen,
    )


# --- the table ------------------------------------------------------------------------------------------


def _heading(lines: Sequence[str]) -> tuple[int, list[str], list[str]]:
    """Number of the heading's line, the devices it names, and the affinity columns after them."""
    for number, line in enumerate(lines):
        words = line.split()
        # A heading begins with a device and has no cells.
        if not words or not _GPU.fullmatch(words[0]) or any(word == "X" or word in _WORDS for word in words):
            continue
        affinities = [heading for heading in _AFFINITY_HEADINGS if heading in " ".join(words)]
        for heading in affinities:
            words = " ".join(words).replace(heading, "").split()
        if len(words) > MAX_DEVICES:
            raise _syntax_error(number, f"{len(words)} GPUs and NICs in one machine; at most {MAX_DEVICES} are allowed")
        if foreign := [word for word in words if not word.isascii()]:
            raise _syntax_error(number, f"{foreign[0]!r} is not the name of a GPU or NIC")
        if twice := {word for word in words if words.count(word) > 1}:
            raise _syntax_error(number, f"{', '.join(sorted(twice))} stands twice in the heading")
        return number, words, affinities
    raise errors.Permanent(
        "no table of `nvidia-smi topo -m`: no line begins with GPU0, GPU1, …; give the whole output of the command"
    )


def _rows(lines: Sequence[str], heading: int, devices: Sequence[str], affinities: int) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    for number, line in enumerate(lines[heading + 1 :], heading + 1):
        words = line.split()
        if not words or words[0] not in devices:
            if rows and words:
                break  # the legend, or the next prompt
            continue
        if words[0] in rows:
            raise _syntax_error(number, f"{words[0]} has a second row")
        if len(words) <= len(devices):
            raise _syntax_error(
                number, f"{words[0]} has {len(words) - 1} cells, the heading names {len(devices)} devices"
            )
        cells = tuple(words[1 : len(devices) + 1])
        rows[words[0]] = _Row(number, words[0], cells, _tail(line, len(devices) + 1, affinities))
    if missing := [device for device in devices if _GPU.fullmatch(device) and device not in rows]:
        raise _syntax_error(heading, f"no row for {', '.join(missing)}")
    return rows


def _tail(line: str, before: int, columns: int) -> tuple[str, ...]:
    """The affinity cells of a row, after `before` words; an empty cell is an empty text."""
    words = line.split()[before:]
    if len(words) >= columns:
        return tuple(words)
    cells = [cell.strip() for cell in line.split("\t")]
    filled = [number for number, cell in enumerate(cells) if cell]
    if "\t" not in line or len(filled) < before:
        return ()
    cells = cells[filled[before - 1] + 1 :]
    # nvidia-smi prints two tabs before the last of three columns.
    last = columns - 1 if columns == len(_AFFINITY_HEADINGS) else columns
    return (*cells[:last], next((cell for cell in cells[last:] if cell), ""))


def _relation(row: _Row, column: int, other: str) -> Relation:
    if relation := _WORDS.get(row.cells[column]):
        return relation
    raise _syntax_error(row.line, f"{row.name} to {other}: {row.cells[column]!r} is no kind of link")


def _between_gpus(rows: Sequence[_Row], gpus: Sequence[int]) -> tuple[list[list[Relation]], dict[tuple[int, int], int]]:
    """The PCIe path of every pair (unknown under NVLink), and the NVLinks; `gpus` are the columns of the rows."""
    seen = [[Relation.UNKNOWN] * len(gpus) for _ in gpus]
    links: dict[tuple[int, int], int] = {}
    for a, row in enumerate(rows):
        for b, column in enumerate(gpus):
            cell, mirrored = row.cells[column], rows[b].cells[gpus[a]]
            if cell != mirrored:
                raise _syntax_error(row.line, f"{row.name} to {rows[b].name} is {cell}, the other way round {mirrored}")
            if (cell == "X") is not (a == b):
                raise _syntax_error(row.line, f"{row.name} to {rows[b].name} is {cell!r}; X is for a GPU and itself")
            if nvlink := _NVLINK.fullmatch(cell):
                links[a, b] = int(nvlink[1])
            else:
                seen[a][b] = _relation(row, column, rows[b].name)
    return seen, links


def _slot(row: _Row, affinities: Sequence[str]) -> Slot:
    values = dict(zip(affinities, row.tail, strict=False))
    cpus, numa = values.get("CPU Affinity", ""), values.get("NUMA Affinity", "")
    for heading, value in values.items():
        if value and value != "N/A" and not _CPUS.fullmatch(value):
            raise _syntax_error(row.line, f"{row.name}: {heading} {value!r} is not a list such as 0-23,48-71")
    # Near several NUMA nodes is near no one of them.
    return Slot(bus="", numa=int(numa) if numa.isdigit() else None, cpus="" if cpus == "N/A" else cpus)


def _nic_names(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if match := _NIC_NAME.fullmatch(line):
            yield match[1], match[2]


# --- what follows from it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _NvLinks:
    switch: int = 0
    down: tuple[int, ...] = ()
    mesh: tuple[tuple[int, int, int], ...] = ()


def _nvlinks(gpus: int, links: dict[tuple[int, int], int], model: GpuModel | None) -> _NvLinks:
    """Direct links or a switch: the table shows both alike, but a GPU has only so many links.

    Through a switch every pair has the links of the poorer of its two GPUs.
    """
    most = (model.nvlink_links if model else 0) or _MOST_LINKS
    up = [max((links.get((a, b), 0) for b in range(gpus) if b != a), default=0) for a in range(gpus)]
    leaving = max((sum(links.get((a, b), 0) for b in range(gpus)) for a in range(gpus)), default=0)
    switched = all(links.get((a, b), 0) == min(up[a], up[b]) for a in range(gpus) for b in range(gpus) if a != b)
    if leaving > most and switched:
        down = tuple(max(up) - own for own in up)
        return _NvLinks(switch=max(up), down=down if any(down) else ())
    return _NvLinks(mesh=tuple((a, b, count) for (a, b), count in sorted(links.items()) if a < b and count))


def _under_nvlink(
    seen: list[list[Relation]], nics_seen: tuple[tuple[Relation, ...], ...]
) -> tuple[tuple[Relation, ...], ...]:
    """Fill in the PCIe paths that the NICs give away: the best that is certain."""
    gpus = range(len(seen))
    hidden = [(a, b) for a in gpus for b in gpus if a != b and seen[a][b] is Relation.UNKNOWN]
    for reach in (frozenset({Relation.PXB, Relation.PIX}), frozenset({Relation.PIX})):
        for a, b in hidden:
            if any(nic[a] in reach and nic[b] in reach for nic in nics_seen):
                seen[a][b] = Relation.PIX if Relation.PXB not in reach else Relation.PXB
    return tuple(tuple(row) for row in seen)


def _syntax_error(line: int, what: str) -> errors.Permanent:
    return errors.Permanent(f"nvidia-smi topo -m, line {line + 1}: {what}")
