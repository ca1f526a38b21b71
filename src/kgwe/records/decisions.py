"""Decision records: decisions as JSON lines, with all that is needed to make them again.

The scheduler writes them (`recordDirectory`), and so does the simulator (`kgwe simulate --record`).

    {"kind":"snapshot", …}    nodes, network and everything that is free; every file begins with one
    {"kind":"nodes", …}       nodes that came, changed or went, and the network if it did
    {"kind":"decision", …}    the ask and the answer; its `rows` first bring what is free up to date
    {"kind":"end", …}         the workload holds nothing any more

A decision is worked out from what is free on each node, so that is what is written, node by node, whenever it differs
from what was written last; who holds the rest does not matter. `snapshot` is a hash of all of it: a reader knows at
every decision whether it has what the scheduler had.

    {"kind":"decision","at_s":1794787200.5,"by":"plan","job":"0b5c…","snapshot":"9f2c41d0a7b3e618",
     "ask":{"owner":"0b5c…","request":{"gpus":{"count":8},"cpu_milli":64000},"pods":2,"name":"train-7"},
     "rows":[[3,255,192000,2164663517184,110]],
     "seats":[{"node":"h100-0001","cards":[0,1,2,3,4,5,6,7]},{"node":"h100-0002","cards":[0,1,2,3,4,5,6,7]}],
     "score":81.25,"gb_per_s":370.8,"level":"leaf","domain":"leaf-1"}

Fields at their default are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kgwe import errors
from kgwe.placement.fleet.node import Node, Shape
from kgwe.placement.fleet.snapshot import list_gpus
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.plan import Plan
from kgwe.placement.pod import engine
from kgwe.placement.refusal import Refusal
from kgwe.records import codec
from kgwe.records.rows import Row, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from kgwe.model.network.domains import Tree
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.gang.plan import DomainWeights
    from kgwe.placement.pod.score import Weights
    from kgwe.placement.refusal import Refusal
    from kgwe.records.rows import FreeCopy

#: of the lines; a reader refuses one that it does not know
FORMAT: Final = 1


class Seat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one pod got: whole cards, or a share of one card, or slices as profile@start."""

    node: str
    cards: tuple[int, ...] = ()
    milli: int = 0
    slices: tuple[str, ...] = ()


class NodeClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """What nodes of one shape have in common."""

    shape: Any
    labels: dict[str, str] = {}


class NodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node: the number of its class, and what is its own."""

    node: Any
    of: int = 0


class SnapshotLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="snapshot", tag_field="kind"):
    """Everything: no line before it is needed."""

    at_s: float
    snapshot: str
    classes: list[NodeClass]
    nodes: list[NodeLine]
    tree: Any
    rows: list[Row]
    format: int = FORMAT
    version: str = ""
    """Of KGWE."""
    weights: Any = None
    """Of the score, where they are not the usual ones."""
    domain_weights: Any = None


class NodesLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="nodes", tag_field="kind"):
    """Nodes came, changed or went. From here on rows count the nodes there are now, by name."""

    at_s: float
    classes: list[NodeClass] = []
    nodes: list[NodeLine] = []
    gone: list[str] = []
    tree: Any = None
    """None: as before."""
    rows: list[Row] = []
    """Of those that came or changed."""


class RecordedRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal."""

    reason: str
    message: str = ""
    possible: bool = True


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was decided; equal answers are equal to the last bit."""

    seats: tuple[Seat, ...] = ()
    score: float | None = None
    gb_per_s: float | None = None
    """None: nothing to join."""
    level: str = ""
    domain: str = ""
    refused: RecordedRefusal | None = None


class SimulatedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the simulator knows of a job beyond its ask."""

    arrival_s: float
    model: str = ""
    checkpoint_s: float = 0.0


class Decision(Answer, frozen=True, omit_defaults=True, kw_only=True, tag="decision", tag_field="kind"):
    """What was asked, and the answer."""

    at_s: float
    by: Literal["plan", "extender", "simulate"]
    job: str
    snapshot: str
    ask: Any
    rows: tuple[Row, ...] = ()
    avoid: tuple[str, ...] = ()
    """Nodes that were kept for others."""
    among: tuple[str, ...] | None = None
    """The only nodes that were offered; None: all."""
    draws: tuple[int, ...] = ()
    """The random numbers that were drawn."""
    simulated: SimulatedJob | None = None
    """Of a decision in a simulation."""

    @property
    def answer(self) -> Answer:
        return Answer(self.seats, self.score, self.gb_per_s, self.level, self.domain, self.refused)


class End(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    at_s: float
    job: str


Line = SnapshotLine | NodesLine | Decision | End


# --- writing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """A decision as it was taken, not yet written: everything in it is frozen, so that may be done elsewhere."""

    at_s: float
    by: Literal["plan", "extender"]
    ask: Ask
    answer: Plan | Refusal | engine.Decision
    snapshot: str = ""
    rows: tuple[Row, ...] = ()
    avoid: tuple[str, ...] = ()
    among: tuple[str, ...] | None = None
    draws: tuple[int, ...] = ()

    @property
    def is_placed(self) -> bool:
        return isinstance(self.answer, (Plan, engine.Decision))

    def line(self) -> Decision:
        found = answer_of(self.answer)
        return Decision(
            at_s=self.at_s, by=self.by, job=self.ask.owner, snapshot=self.snapshot, ask=codec.encode_ask(self.ask),
            rows=self.rows, avoid=self.avoid, among=self.among, draws=self.draws,
            seats=found.seats, score=found.score, gb_per_s=found.gb_per_s, level=found.level, domain=found.domain,
            refused=found.refused,
        )  # fmt: skip


def answer_of(found: Plan | Refusal | engine.Decision) -> Answer:
    if isinstance(found, Plan):
        seats = tuple(describe_seat(seat.node, grant) for seat, grant in zip(found.seats, found.grants, strict=True))
        return Answer(seats, found.score, _finite(found.gb_per_s), found.level, found.domain)
    if isinstance(found, engine.Decision):
        return Answer(
            (describe_seat(found.name, found.grant),), found.score.total, _finite(found.gb_per_s), "node", found.name
        )
    return Answer(refused=RecordedRefusal(str(found.code), found.message, found.possible))


def _finite(rate: float | None) -> float | None:
    """JSON has no infinity, which one card by itself has."""
    return None if rate is None or math.isinf(rate) else rate


def describe_seat(node: str, grant: Grant) -> Seat:
    return Seat(
        node,
        (grant.share[0],) if grant.share else tuple(list_gpus(grant.gpus)),
        grant.share[1] if grant.share else 0,
        tuple(f"{card}:{each.profile.name}@{each.start}" for card, each in grant.slices),
    )


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """A snapshot as it was, not yet written."""

    at_s: float
    free: FreeCopy
    snapshot: str
    tree: Tree
    weights: tuple[Weights, DomainWeights] | None = None
    version: str = ""

    def line(self, rest: Callable[[], None] = lambda: None) -> SnapshotLine:
        """`rest` is called after every few nodes: in a large fleet this takes a while."""
        classes, lines = _classed(self.free.nodes, rest)
        weights, domain_weights = (codec.encode_value(each) or None for each in self.weights or (None, None))
        return SnapshotLine(
            self.at_s,
            self.snapshot,
            classes,
            lines,
            msgspec.Raw(msgspec.json.encode(codec.encode_tree(self.tree))),
            self._rows(rest),
            version=self.version,
            weights=weights,
            domain_weights=domain_weights,
        )

    def _rows(self, rest: Callable[[], None]) -> list[Row]:
        rows = []
        for number in range(len(self.free.nodes)):
            rows.append(row_of(self.free, number))
            if number % _ROWS_AT_ONCE == 0:
                rest()
        return rows


@dataclass(frozen=True, slots=True)
class PendingNodes:
    """Nodes that came, changed or went, not yet written."""

    at_s: float
    nodes: tuple[Node, ...]
    gone: tuple[str, ...]
    #: None: as before
    tree: Tree | None
    rows: tuple[Row, ...]

    def line(self) -> NodesLine:
        classes, lines = _classed(self.nodes)
        tree = None if self.tree is None else codec.encode_tree(self.tree)
        return NodesLine(self.at_s, classes, lines, list(self.gone), tree, list(self.rows))


# Some tenths of a millisecond.
_NODES_AT_ONCE: Final = 8
_ROWS_AT_ONCE: Final = 64


def _classed(listed: Sequence[Node], rest: Callable[[], None] = lambda: None) -> tuple[list[NodeClass], list[NodeLine]]:
    """Hundreds of nodes share a shape and most of their labels: those are written once."""
    # Equal shapes are one object, and telling them apart by what is in them takes long.
    common: dict[int, set[tuple[str, str]]] = {}
    shapes: dict[int, Shape] = {}
    for number, node in enumerate(listed):
        of = id(node.shape)
        shapes[of] = node.shape
        common[of] = common[of] & node.labels.items() if of in common else set(node.labels.items())
        if number % _ROWS_AT_ONCE == 0:
            rest()
    numbers = {of: number for number, of in enumerate(common)}
    classes = [NodeClass(codec.encode_value(shapes[of]), dict(sorted(items))) for of, items in common.items()]
    lines = []
    for number, node in enumerate(listed):
        of = id(node.shape)
        own = {key: value for key, value in node.labels.items() if (key, value) not in common[of]}
        fields = codec.encode_value(replace(node, labels=own), but="shape")
        lines.append(NodeLine(msgspec.Raw(msgspec.json.encode(fields)), numbers[of]))
        if number % _NODES_AT_ONCE == 0:
            rest()
    return classes, lines


# --- reading ---------------------------------------------------------------------------------------------


def read_nodes(line: SnapshotLine | NodesLine) -> list[Node]:
    """The nodes that a line describes."""
    shapes = [codec.decode_value(Shape, each.shape) for each in line.classes]
    found = []
    for each in line.nodes:
        node = codec.decode_value(Node, each.node, shape=shapes[each.of])
        found.append(replace(node, labels={**line.classes[each.of].labels, **node.labels}))
    return found


def read_lines(paths: Iterable[Path]) -> Iterator[tuple[str, Line]]:
    """The lines of the files, one after the other, each with where it stands; the last may have been cut off."""
    decoder = msgspec.json.Decoder(Line)
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, text in enumerate(file, 1):
                    if text.endswith(b"\n") and text.strip():
                        yield f"{path}:{number}", _line(decoder, text, f"{path}:{number}")
        except OSError as exc:
            raise errors.NotFound(f"reading decision records: {exc}") from exc


def _line(decoder: msgspec.json.Decoder[Line], text: bytes, where: str) -> Line:
    try:
        line = decoder.decode(text)
    except msgspec.MsgspecError as exc:
        raise errors.Permanent(f"{where} is not a decision record: {exc}") from exc
    if isinstance(line, SnapshotLine) and line.format != FORMAT:
        raise errors.Permanent(f"{where} has format {line.format}; this version of KGWE reads {FORMAT}")
    return line


def read_ask(line: Decision) -> Ask:
    return codec.decode_value(Ask, line.ask)
