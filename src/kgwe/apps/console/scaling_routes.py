"""`/api/v1/autoscaler` and `/api/v1/decisions`: what was bought and removed, and what the scheduler decided."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from kgwe import errors
from kgwe.apps.console.lists import Name, cut_page
from kgwe.httpapi import problems
from kgwe.httpapi.paging import Continue, Limit  # noqa: TC001 - read by msgspec when it describes the query
from kgwe.httpapi.routes import NoQuery, Route
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.autoscalingpolicy import (  # noqa: TC001 - read by msgspec when it describes the reply
    AutoscalingPolicySpec,
    AutoscalingPolicyStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.scope import Scope, ScopeReader
    from kgwe.httpapi.authentication import User

# Of the newest records only so many bytes are read.
_TAIL_BYTES: Final = 4 << 20
_MOST_LINES: Final = 2000


class PolicyView(msgspec.Struct, frozen=True):
    """An AutoscalingPolicy."""

    name: str
    spec: AutoscalingPolicySpec
    status: AutoscalingPolicyStatus


class AutoscalerReply(msgspec.Struct, frozen=True):
    """The policies, with their plans and what they did."""

    visible: Annotated[bool, msgspec.Meta(description="Whether the user may list AutoscalingPolicies.")]
    policies: list[PolicyView]


class DecisionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `/api/v1/decisions`."""

    namespace: Annotated[Name, msgspec.Meta(description="Only this namespace.")] = ""
    name: Annotated[Name, msgspec.Meta(description="Only the workload of this name.")] = ""
    limit: Limit = 100
    mark: Continue = msgspec.field(default="", name="continue")


class DecisionRow(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One decision of the scheduler."""

    time: str
    by: Annotated[str, msgspec.Meta(description="plan or extender.")]
    namespace: str
    name: str
    pods: int = 1
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    score: float | None = None
    gb_per_s: float | None = None
    domain: str = ""
    reason: Annotated[str, msgspec.Meta(description="Of a refusal, as one word.")] = ""
    message: str = ""


class DecisionReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decisions about workloads that the user may list, the newest first."""

    items: list[DecisionRow]
    configured: bool
    mark: Annotated[str, msgspec.Meta(description="Where the next page begins.")] = msgspec.field(
        default="", name="continue"
    )


class _Seat(msgspec.Struct, frozen=True):
    node: str
    cards: tuple[int, ...] = ()
    slices: tuple[str, ...] = ()


class _Refused(msgspec.Struct, frozen=True):
    reason: str
    message: str = ""


class _Ask(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    pods: int = 1


class _Line(msgspec.Struct, frozen=True):
    """The part of a record that the log shows."""

    kind: str = ""
    at_s: float = 0.0
    by: str = ""
    ask: _Ask = _Ask()
    seats: tuple[_Seat, ...] = ()
    score: float | None = None
    gb_per_s: float | None = None
    level: str = ""
    domain: str = ""
    refused: _Refused | None = None


class ScalingRoutes:
    """Answers questions about the autoscaler and about past decisions."""

    def __init__(self, watch: ClusterWatch, scopes: ScopeReader, records: str) -> None:
        """`records`: directory of the decision records; empty: none."""
        self._watch = watch
        self._scopes = scopes
        self._records = Path(records) if records else None
        self._known: tuple[tuple[Any, ...], list[DecisionRow]] = ((), [])
        self._reading = asyncio.Lock()

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "/api/v1/autoscaler",
                "Plans and history of the autoscaler",
                NoQuery,
                AutoscalerReply,
                self.read_policies,
                "autoscaler",
            ),
            Route(
                "/api/v1/decisions",
                "Decisions of the scheduler",
                DecisionQuery,
                DecisionReply,
                self.list_decisions,
                "decisions",
            ),
        ]

    async def read_policies(self, user: User, _query: NoQuery) -> AutoscalerReply:
        """Return the policies. What names work of namespaces that the user may not list is left out."""
        scope = await self._scopes.read(user)
        if not scope.policies:
            return AutoscalerReply(visible=False, policies=[])
        store = self._watch.stores.get(resources.AUTOSCALING_POLICY, {})
        found = [
            PolicyView(each.metadata.name, each.spec, _limit_status(each.status, scope)) for each in store.values()
        ]
        return AutoscalerReply(visible=True, policies=sorted(found, key=lambda each: each.name))

    async def list_decisions(self, user: User, query: DecisionQuery) -> DecisionReply:
        """Return decisions about what the user may list."""
        scope = await self._scopes.read(user)
        if self._records is None:
            return DecisionReply([], configured=False)
        async with self._reading:
            try:
                rows = await asyncio.to_thread(self._read_rows, self._records)
            except OSError as exc:
                raise problems.unavailable(f"the decision records cannot be read: {exc.strerror}") from exc
        wanted = [
            row
            for row in rows
            if _covers(scope, row.namespace) and query.namespace in {"", row.namespace} and query.name in {"", row.name}
        ]
        page, mark = cut_page(wanted, query.limit, query.mark)
        return DecisionReply(list(page), configured=True, mark=mark)

    def _read_rows(self, directory: Path) -> list[DecisionRow]:
        files = sorted(directory.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)[:2]
        stamp = tuple((path.name, path.stat().st_size) for path in files)
        if stamp != self._known[0]:
            # The oldest file first: of decisions at the same time, the later line is the newer one.
            lines = [line for path in reversed(files) for line in _read_tail(path)][::-1]
            lines.sort(key=lambda line: line.at_s, reverse=True)
            self._known = stamp, [_make_row(line) for line in lines[:_MOST_LINES]]
        return self._known[1]


def _covers(scope: Scope, namespace: str) -> bool:
    """Whether decisions of a namespace may be shown: they are about pods and about workloads of both groups."""
    return scope.pods.covers(namespace) and scope.workloads.covers(namespace) and scope.warp_workloads.covers(namespace)


def _limit_status(status: AutoscalingPolicyStatus, scope: Scope) -> AutoscalingPolicyStatus:
    """Return the part of a status that names no work of namespaces that the user may not list."""
    if scope.pods.everything and scope.workloads.everything and scope.warp_workloads.everything:
        return status

    def is_shown(owner: str) -> bool:
        namespace, slash, _ = owner.partition("/")
        return bool(slash) and _covers(scope, namespace)

    change = msgspec.structs.replace
    return change(
        status,
        launches=tuple(change(each, owners=tuple(filter(is_shown, each.owners))) for each in status.launches),
        unmet=tuple(each for each in status.unmet if is_shown(each.owner)),
        choices=tuple(each for each in status.choices if is_shown(each.owner)),
        # Sentences may name any pod.
        plan=tuple(change(each, reason="") for each in status.plan),
        kept=tuple(change(each, message="") for each in status.kept),
        actions=tuple(change(each, reason="") for each in status.actions),
        conditions=tuple(change(each, message="") for each in status.conditions),
        lastScaleReason="",
    )


def _read_tail(path: Path) -> Iterator[_Line]:
    """Yield the decisions at the end of a file; lines that cannot be read are left out."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _TAIL_BYTES, 0))
        lines = file.read(_TAIL_BYTES).split(b"\n")
    decoder = msgspec.json.Decoder(_Line)
    for text in lines[1:] if size > _TAIL_BYTES else lines:
        if b'"decision"' not in text[:64]:
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, errors.KgweError):
            continue
        yield line


def _make_row(line: _Line) -> DecisionRow:
    return DecisionRow(
        time=timestamp.format_time(line.at_s),
        by=line.by,
        namespace=line.ask.namespace,
        name=line.ask.name,
        pods=line.ask.pods,
        nodes=tuple(dict.fromkeys(seat.node for seat in line.seats)),
        gpus=sum(len(seat.cards) for seat in line.seats),
        score=line.score,
        gb_per_s=line.gb_per_s,
        domain=f"{line.level} {line.domain}".strip(),
        reason=line.refused.reason if line.refused is not None else "",
        message=line.refused.message if line.refused is not None else "",
    )
