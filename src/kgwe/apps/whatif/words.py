"""An explanation as text, and a request in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.model.units.phrasing import (
    end_sentence,
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_number,
    join_words,
)
from kgwe.placement.fleet.node import Preference, SpotPolicy
from kgwe.placement.gang.request import Hardware
from kgwe.placement.planning.reasons import describe_request
from kgwe.placement.pod.wording import describe_gpus
from kgwe.placement.refusal import Reason
from kgwe.visible_text import escape_line, escape_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.apps.whatif.explanation import (
        Best,
        Explanation,
        Gang,
        Happened,
        Holder,
        NodeCount,
        Placed,
        Seat,
        Turn,
        Waiting,
        WhatIf,
        Word,
    )
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.planning.ask import Ask

# Seats that are listed one by one; more are counted by node.
_LISTED: Final = 16
_SPOT: Final = {
    SpotPolicy.REQUIRE: "on spot nodes only",
    SpotPolicy.AVOID: "avoids spot nodes where other nodes are good enough",
}
_HARDWARE: Final = {
    Hardware.SAME: "all on one GPU model and CPU architecture",
    Hardware.ANY: "GPU models and CPU architectures may be mixed",
}
# Parts of scores that their names do not explain.
_PARTS: Final = {
    "availability": "tight fit",
    "alignment": "ring speed",
    "utilisation": "GPUs in use there",
    "history": "earlier runs there",
    "resource": "utilization",
}
_LIMITS: Final = {
    "max_nodes_per_leaf": ("node", "leaf"),
    "max_gpus_per_leaf": ("GPU", "leaf"),
    "max_pods_per_node": ("pod", "node"),
}


# --- requests --------------------------------------------------------------------------------------------


def describe_ask(ask: Ask, whole: Ask | None = None) -> tuple[str, ...]:
    """What a workload asks for; `whole`: the same, divided among pods."""
    if ask.gang is None:
        parts = f", as {describe_request(whole)}" if whole is not None and whole.pods != ask.pods else ""
        lines = [describe_request(ask) + parts, *_of_pod(ask.request)]
    else:
        lines = [_role(role.name, role.replicas, role.required_replicas, role.request) for role in ask.gang.roles]
    lines += _nearness(ask)
    if ask.strategy:
        lines.append(f"strategy {ask.strategy}")
    lines.append(f"priority {ask.priority}" + (", preemptible" if ask.preemptible else ""))
    if ask.expected_s:
        lines.append(f"expected to run {format_duration(ask.expected_s)}")
    return tuple(lines)


def _role(name: str, replicas: int, least: int, request: Request) -> str:
    each = describe_gpus(request.gpus)
    pods = format_count(replicas, f"{name} pod")
    count = pods if least == replicas else f"{least} to {pods}"
    return ", ".join([f"{count} of {each}", *_of_pod(request)])


def _of_pod(request: Request) -> Iterator[str]:
    if request.cpu_milli or request.memory_bytes:
        amounts = [format_cores(request.cpu_milli)] if request.cpu_milli else []
        amounts += [f"{format_bytes(request.memory_bytes)} of memory"] if request.memory_bytes else []
        yield f"{join_words(amounts)} per pod"
    if request.model:
        yield f"GPU model {escape_line(request.model)}"
    if request.architecture:
        yield f"GPU architecture {request.architecture}"
    if request.min_memory_gb:
        yield f"at least {request.min_memory_gb} GB of memory per GPU"
    if request.preference is not Preference.NONE:
        yield f"GPU connection {request.preference}"
    if request.min_bandwidth_gbps:
        yield f"at least {request.min_bandwidth_gbps:g} GB/s between its GPUs"
    if request.spot in _SPOT:
        yield _SPOT[request.spot]
    bound = request.constraints
    if bound.selector:
        yield "nodes with " + ", ".join(escape_line(f"{key}={value}") for key, value in bound.selector)
    if bound.affinity is not None:
        yield "required node affinity"


def _nearness(ask: Ask) -> Iterator[str]:
    near: GangRequest | object = ask.gang if ask.gang is not None else ask.nearness
    for field, words in (("required", "all in one {}"), ("preferred", "preferably in one {}")):
        level = getattr(near, field)
        if level:
            yield words.format(level)
    least = getattr(near, "min_network_gb_per_s", 0.0)
    if least:
        yield f"at least {least:g} GB/s between nodes"
    hardware = getattr(near, "hardware", Hardware.PREFER_SAME)
    if hardware in _HARDWARE and (ask.gang is not None or ask.pods > 1 or ask.divisible):
        yield _HARDWARE[hardware]
    for field, (noun, place) in _LIMITS.items():
        if most := getattr(near, field):
            yield f"at most {format_count(most, noun)} per {place}"
    roles = ask.gang.roles if ask.gang is not None else (ask.nearness,)
    for segment in (each for role in roles for each in role.segments):
        yield f"groups of {segment.size or 'all'} in one {segment.level}"


# --- an explanation --------------------------------------------------------------------------------------


def text(told: Explanation) -> str:
    return escape_text("\n".join(_lines(told)) + "\n")


def what_if(told: WhatIf) -> str:
    lines = [f"Assumed: {', '.join(told.changes) or 'the cluster as it is'}"]
    gpus = told.gpus
    lines.append(f"  schedulable nodes: {gpus.nodes}; {gpus.free} of their {format_count(gpus.cards, 'GPU')} free")
    if told.displaced:
        lines.append(f"  displaced: {', '.join(told.displaced)}")
    if told.ignored:
        lines.append(f"  ignored (does not affect placement): {', '.join(told.ignored)}")
    for result in told.results:
        lines += ["", *_lines(result)]
    lines += [f"Not read: {warning}" for warning in told.warnings]
    return escape_text("\n".join(lines) + "\n")


def _lines(told: Explanation) -> Iterator[str]:
    """The problem first, then the nearest place and what would help, then the rest."""
    title = f"{told.kind} {told.namespace}/{told.name}" if told.kind else told.name
    yield f"{title}: {told.summary}"
    yield from _block("Problems", told.problems)
    if told.waiting is not None:
        yield from _format_waiting(told.waiting)
    if told.gang is not None:
        yield from _block("Gang", _gang(told.gang, told.summary))
    if told.placed is not None:
        yield from _format_place(told.placed, "Placed on")
    if told.would_go is not None:
        yield from _format_place(told.would_go, "Would go to")
    yield from _block("MIG", told.cuts)
    yield from _block("Asked for", told.asked)
    if told.waiting is not None:
        yield from _block("Nodes", [_count(each) for each in told.waiting.nodes])
        yield from _block("Levels", told.waiting.levels)
    if told.turn is not None:
        yield from _block("Queue", _turn(told.turn))
    if told.estimated_start is not None:
        p50, p90 = told.estimated_start
        likely = f"by {p50} (50 % likely), by {p90} (90 % likely)"
        is_declared = told.waiting is not None and any(each.until for each in told.waiting.holders)
        note = "; workloads often end before their declared end" if is_declared else ""
        yield from _block("May start", [f"{likely}{note}"])
    elif told.waiting is not None and told.waiting.free_by and not told.waiting.hopeless:
        ends = f"by {told.waiting.free_by}, the declared end of enough workloads of the nearest place"
        yield from _block("May start", [f"{ends}; later if workloads ahead in the queue take the room"])
    yield from _block("Last status", [_format_condition(each) for each in told.said])
    yield from _block("Events", [_format_event(each) for each in told.events])
    yield from _block("Not read", told.warnings)


def _format_condition(word: Word) -> str:
    since = f" (since {word.since})" if word.since else ""
    return f"{word.type}={word.status} {word.reason}: {word.message}{since}"


def _format_event(event: Happened) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    return f"{event.last} {event.type} {event.reason}: {event.message}{times}".lstrip()


def _block(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        for index, part in enumerate(line.split("\n")):
            yield f"  {title if number == 0 and index == 0 else '':<12} {part}".rstrip()


def _format_place(placed: Placed, title: str) -> Iterator[str]:
    if len(placed.seats) <= _LISTED:
        yield from _block(title, [_seat(seat) for seat in placed.seats])
    else:
        counts: dict[str, int] = {}
        for seat in placed.seats:
            counts[seat.node] = counts.get(seat.node, 0) + 1
        yield from _block(title, [f"{node}: {format_count(count, 'pod')}" for node, count in counts.items()])
    facts = []
    if placed.domain:
        facts.append(f"domain {placed.domain}")
    if placed.score is not None:
        points = {_PARTS.get(name, name): format_number(round(part, 1)) for name, part in placed.parts.items()}
        parts = ", ".join(f"{name} {number}" for name, number in points.items())
        facts.append(f"score {placed.score:.0f} of 100" + (f" ({parts})" if parts else ""))
    if placed.gb_per_s:
        facts.append(f"{placed.gb_per_s:.1f} GB/s")
    yield from _block("", ["; ".join(facts)] if facts else [])
    yield from _block("Why there", placed.why)


def _seat(seat: Seat) -> str:
    many = "GPUs" if len(seat.cards) > 1 else "GPU"
    cards = f" {many} {','.join(map(str, seat.cards))}" if seat.cards else ""
    pod = f" ({seat.pod}{', ' + seat.phase if seat.phase else ''})" if seat.pod else ""
    return f"{seat.node}{cards}{pod}"


def _format_waiting(waiting: Waiting) -> Iterator[str]:
    # The summary has the problem, and the line below has the fix.
    counts = waiting.message.partition(waiting.binding)[0].rstrip() if waiting.fix else waiting.message
    yield from _block("Blocked by", [f"{waiting.reason}: {counts or waiting.message}"])
    if not waiting.fix:
        best = waiting.message.partition(" Best: ")[2].removesuffix(".")
        nearest = [_format_best(waiting.best)] if waiting.best is not None else [f"node {best}"] * bool(best)
        yield from _block("Nearest", [*nearest, *map(_holder, waiting.holders)])
    if waiting.hopeless:
        fix = f" {end_sentence(waiting.fix)}" if waiting.fix else ""
        yield f"  Will not start by waiting.{fix}"
    if waiting.changes:
        yield "  Would help (any one of these starts it on the nodes as listed just now):"
        yield from (f"    - {change.text}" for change in waiting.changes)
    elif waiting.reason == Reason.BUDGET_EXCEEDED:
        if not waiting.hopeless:
            yield "  Would help   the next period, a higher limit, or an early end of workloads that the budget counts"
    elif not waiting.hopeless:
        yield "  Would help   waiting, or stopping workloads that hold GPUs; no single change of its spec starts it now"


def _format_best(best: Best) -> str:
    where = best.level if best.domain in ("", best.level) else f"{best.level} {best.domain}"
    if best.level == "node":
        return f"{where}: {best.room} of {best.needed} free, {best.short} short"
    return f"{where}: {best.room} of {format_count(best.needed, 'pod')} fit, {best.short} short"


def _holder(holder: Holder) -> str:
    until = f"declared end: {holder.until}" if holder.until else "end unknown: it declares no duration"
    gpus = f"{format_number(holder.gpus)} {'GPU' if holder.gpus <= 1 else 'GPUs'}"
    return f"{holder.name} holds {f'{holder.scarce} and ' if holder.scarce else ''}{gpus} ({until})"


def _count(each: NodeCount) -> str:
    role = f"{each.role}: " if each.role else ""
    more = f" +{each.count - len(each.examples)}" if each.count > len(each.examples) else ""
    return f"{role}{each.count} {each.text} ({', '.join(each.examples)}{more})"


def _gang(gang: Gang, summary: str) -> Iterator[str]:
    missing = f", {gang.missing} missing" if gang.missing else ""
    yield f"{gang.name} ({gang.dialect}): {format_count(gang.members, 'pod')} created, {gang.seated} placed{missing}"
    if gang.problem and end_sentence(gang.problem).lower() not in summary.lower():
        yield gang.problem
    if gang.waits_for:
        yield f"not placed: {', '.join(gang.waits_for)}"


def _turn(turn: Turn) -> Iterator[str]:
    after = f", after {', '.join(turn.ahead)}" if turn.ahead else ""
    yield f"position {turn.place} of {turn.of} waiting workloads that could start{after}"
