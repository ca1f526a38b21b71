"""RightsizingDecision objects: the ledger of a namespace as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kgwe.forecast.rightsizing import policy as modes
from kgwe.forecast.rightsizing.decide import Choice
from kgwe.forecast.rightsizing.ledger import EMPTY, Decided, Event, Ledger, Revert
from kgwe.forecast.rightsizing.policy import Mode
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.rightsizingdecision import Happening, Reverted, RightsizingDecisionSpec, Smaller
from kgwe.model.devices import shares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.forecast.rightsizing.policy import RightsizingPolicy

_MESSAGE: int = 512


def read_ledger(spec: RightsizingDecisionSpec | None) -> Ledger:
    """Return the ledger that an object stores. Entries that cannot be read are left out."""
    if spec is None:
        return EMPTY
    decided = {key: found for key, each in spec.decisions.items() if (found := _read_decided(each)) is not None}
    reverted = {
        key: Revert(each.reason, each.message, timestamp.epoch_seconds(each.at or ""))
        for key, each in spec.reverted.items()
    }
    events = tuple(Event(timestamp.epoch_seconds(each.at), each.key, each.what, each.message) for each in spec.history)
    mode = Mode(spec.mode) if spec.mode in list(Mode) else Mode.OFF
    return Ledger(mode, decided, reverted, spec.refused, events, spec.problem)


def _read_decided(each: Smaller) -> Decided | None:
    try:
        count = shares.shares_of_fraction(float(each.share)) if each.share else 0
    except ValueError:
        return None
    choice = Choice(each.profile, count, reason=each.reason)
    if choice.resource != each.resource or bool(each.profile) == bool(count):
        return None
    since = timestamp.epoch_seconds(each.since or "")
    return Decided(choice, each.fingerprint, since, each.runSecondsP95, each.rate)


def build_spec(ledger: Ledger, policy: RightsizingPolicy, offered: Iterable[str]) -> RightsizingDecisionSpec:
    """Return the spec that stores the ledger."""
    is_canary = policy.mode is Mode.CANARY
    return RightsizingDecisionSpec(
        mode=ledger.mode,
        canaryLetters=policy.choose_characters(modes.LETTERS) if is_canary else "",
        canaryDigits=policy.choose_characters(modes.DIGITS) if is_canary else "",
        includeManaged=policy.include_managed,
        offered=tuple(sorted(offered))[:64],
        decisions={key: _build_smaller(each) for key, each in ledger.decided.items()},
        reverted={
            key: Reverted(each.reason, each.message[:_MESSAGE], timestamp.format_time(each.at_s))
            for key, each in ledger.reverted.items()
        },
        refused={key: reason[:_MESSAGE] for key, reason in ledger.refused.items()},
        errors=ledger.errors,
        errorBudget=policy.error_budget,
        problem=ledger.problem[:_MESSAGE],
        history=tuple(
            Happening(timestamp.format_time(each.at_s), each.key, each.what, each.message[:_MESSAGE])
            for each in ledger.events
        ),
    )


def _build_smaller(each: Decided) -> Smaller:
    choice = each.choice
    return Smaller(
        resource=choice.resource,
        profile=choice.profile,
        share=f"{1 / choice.shares:.2g}" if choice.shares else "",
        reason=choice.reason[:_MESSAGE],
        fingerprint=each.fingerprint,
        since=timestamp.format_time(each.since_s),
        runSecondsP95=each.run_p95_s,
        rate=each.rate,
    )


def build_body(metadata: dict[str, Any], spec: RightsizingDecisionSpec) -> dict[str, Any]:
    """Return the object as it is written."""
    kind = resources.RIGHTSIZING_DECISION
    head = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    return head | {"spec": msgspec.to_builtins(spec)}
