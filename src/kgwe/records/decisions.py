"""Decision records: decisions as JSON lines, with all that is needed to make them again.

The scheduler writes them (`recordDirectory`), and so does the simulator (`kgwe simulate --record`).

    {"kind":"snapshot", …}    nodes, network and all free capacity; each file begins with one
    {"kind":"nodes", …}       nodes added, changed or removed, and the network if it changed
    {"kind":"decision", …}    the ask and the answer; its `rows` first update the free capacity
    {"kind":"end", …}         the workload has released its seats

A decision depends on the free capacity of each node, so each changed node is written; the holders of the rest do not
matter. `snapshot` is a hash of all free capacity: a reader can check at each decision that it has the scheduler's
state.

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

#: format of the lines; a reader refuses an unknown one
FORMAT: Final = 1


class Seat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The devices of one pod: whole GPUs, a share of one GPU, or slices as profile@start."""

    node: str
    cards: tuple[int, ...] = ()
    milli: int = 0
    slices: tuple[str, ...] = ()


class NodeClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """The common properties of nodes of one shape."""

    shape: Any
    labels: dict[str, str] = {}


class NodeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node: the number of its class, and its own properties."""

    node: Any
    of: int = 0


class SnapshotLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="snapshot", tag_field="kind"):
    """The complete state; no earlier line is needed."""

    at_s: float
    snapshot: str
    classes: list[NodeClass]
    nodes: list[NodeLine]
    tree: Any
    rows: list[Row]
    format: int = FORMAT
    version: str = ""
    """Version of KGWE."""
    weights: Any = None
    """Weights of the score, if they differ from the defaults."""
    domain_weights: Any = None


class NodesLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="nodes", tag_field="kind"):
    """Nodes were added, changed or removed. Later rows number the current nodes by name."""

    at_s: float
    classes: list[NodeClass] = []
    nodes: list[NodeLine] = []
    gone: list[str] = []
    tree: Any = None
    """None if unchanged."""
    rows: list[Row] = []
    """Rows of added and changed nodes."""


class RecordedRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal."""

    reason: str
    message: str = ""
    possible: bool = True


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The decision; equal answers are equal to the last bit."""

    seats: tuple[Seat, ...] = ()
    score: float | None = None
    gb_per_s: float | None = None
    """None if no network was involved."""
    level: str = ""
    domain: str = ""
    refused: RecordedRefusal | None = None


class SimulatedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """The simulator's data about a job besides its ask."""

    arrival_s: float
    model: str = ""
    checkpoint_s: float = 0.0


class Decision(Answer, frozen=True, omit_defaults=True, kw_only=True, tag="decision", tag_field="kind"):
    """The request and the answer."""

    at_s: float
    by: Literal["plan", "extender", "simulate"]
    job: str
    snapshot: str
    ask: Any
    rows: tuple[Row, ...] = ()
    avoid: tuple[str, ...] = ()
    """Nodes that were reserved for others."""
    among: tuple[str, ...] | None = None
    """The only nodes offered; None for all."""
    draws: tuple[int, ...] = ()
    """The random numbers that were drawn."""
    simulated: SimulatedJob | None = None
    """Set for decisions of a simulation."""

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
    """A decision that is not yet written. Its content is frozen, so another thread may write it."""

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
        return Answer(seats, found.score, _replace_infinity(found.gb_per_s), found.level, found.domain)
    if isinstance(found, engine.Decision):
        return Answer(
            (describe_seat(found.name, found.grant),),
            found.score.total,
            _replace_infinity(found.gb_per_s),
            "node",
            found.name,
        )
    return Answer(refused=RecordedRefusal(str(found.code), found.message, found.possible))


def _replace_infinity(rate: float | None) -> float | None:
    """Replace infinity, which JSON does not have and a single GPU's bandwidth is."""
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
    """A snapshot that is not yet written."""

    at_s: float
    free: FreeCopy
    snapshot: str
    tree: Tree
    weights: tuple[Weights, DomainWeights] | None = None
    version: str = ""

    def line(self, rest: Callable[[], None] = lambda: None) -> SnapshotLine:
        """Return the line. `rest` is called after every few nodes, because a large fleet takes long."""
        classes, lines = _group_by_class(self.free.nodes, rest)
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
    """Added, changed or removed nodes that are not yet written."""

    at_s: float
    nodes: tuple[Node, ...]
    gone: tuple[str, ...]
    #: None if unchanged
    tree: Tree | None
    rows: tuple[Row, ...]

    def line(self) -> NodesLine:
        classes, lines = _group_by_class(self.nodes)
        tree = None if self.tree is None else codec.encode_tree(self.tree)
        return NodesLine(self.at_s, classes, lines, list(self.gone), tree, list(self.rows))


# Takes some tenths of a millisecond.
_NODES_AT_ONCE: Final = 8
_ROWS_AT_ONCE: Final = 64
# The snapshot of a very large cluster is far smaller.
_MAX_LINE_BYTES: Final = 256 << 20


def _group_by_class(
    listed: Sequence[Node], rest: Callable[[], None] = lambda: None
) -> tuple[list[NodeClass], list[NodeLine]]:
    """Return nodes with numbered classes: hundreds of nodes share a shape and most labels, which are written once."""
    # Equal shapes are one object; comparing their content takes long.
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
    """Return the nodes that a line describes."""
    shapes = [codec.decode_value(Shape, each.shape) for each in line.classes]
    found = []
    for each in line.nodes:
        node = codec.decode_value(Node, each.node, shape=shapes[each.of])
        found.append(replace(node, labels={**line.classes[each.of].labels, **node.labels}))
    return found


def read_lines(paths: Iterable[Path]) -> Iterator[tuple[str, Line]]:
    """Yield the lines of the files with their positions; the last line may be truncated."""
    decoder = msgspec.json.Decoder(Line)
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, text in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
                    if len(text) > _MAX_LINE_BYTES:
                        raise errors.Permanent(f"{path}:{number} is not a decision record: the line is too long")
                    if text.endswith(b"\n") and text.strip():
                        yield f"{path}:{number}", _line(decoder, text, f"{path}:{number}")
        except OSError as exc:
            raise errors.NotFound(f"cannot read decision records: {exc}") from exc


def _line(decoder: msgspec.json.Decoder[Line], text: bytes, where: str) -> Line:
    try:
        line = decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise errors.Permanent(f"{where} is not a decision record: {exc}") from exc
    if isinstance(line, SnapshotLine) and line.format != FORMAT:
        raise errors.Permanent(f"{where} has format {line.format}; this version of KGWE reads {FORMAT}")
    return line


def read_ask(line: Decision) -> Ask:
    return codec.decode_value(Ask, line.ask)
