"""Follows recommendations: notices that one was followed, meters before and after, and reports the realised saving.

A recommendation was followed when the owner's pods run with the recommended devices, or the owner is suspended. Every
round meters what the pods of each owner hold: GPUs x price, for the time since the last round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.optimizer.waste.owner_use import OwnerUse, UseReader
from kgwe.apps.optimizer.waste.savings import Advice, Entry, Form, Metered, name_model
from kgwe.cluster.suspension.owner_kinds import KINDS
from kgwe.cluster.suspension.owner_search import Owner
from kgwe.cluster.suspension.suspender import is_suspended
from kgwe.forecast.waste.alternatives import Action
from kgwe.forecast.waste.verify import Result, verify_saving
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.events import Event
from kgwe.placement.fleet.node import share_milli

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.allocations import Allocation
    from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
    from kgwe.apps.optimizer.waste.savings import Key, SavingsLedger
    from kgwe.forecast.waste.alternatives import Alternative
    from kgwe.forecast.waste.recommend import Prices
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.usage.window import PodKey

log = structlog.get_logger(__name__)

_MILLI: Final = 1000
_HOUR_S: Final = 3600.0
# Advice that was not given again for so long is forgotten, and so is a followed owner without pods.
_FORGET_S: Final = 3600.0
# Owners that are suspended are read this often.
_RECHECK_S: Final = 300.0
# Savings that have ended are kept for so long.
_KEEP_S: Final = 30 * 86400.0
# The store gets the meters this often, and notable changes at once.
_SAVE_S: Final = 60.0
# Different recommendations of one owner that are remembered.
_MAX_ADVICE: Final = 8
_UNSURE: Final = frozenset({Result.TOO_EARLY, Result.UNKNOWN})
_GOOD: Final = frozenset({Result.REALIZED, Result.PARTLY})


@dataclass(frozen=True, slots=True)
class VerifyRules:
    """Times of the verification."""

    interval_s: float
    """Between two rounds."""
    after_s: float = 3600.0
    """Metered time after which a saving is reported."""


class SavingsVerifier:
    """Follows the recommendations of all owners. A failing owner concerns itself alone."""

    def __init__(
        self,
        client: KubeClient,
        ledger: SavingsLedger,
        rules: VerifyRules,
        *,
        prices: Prices,
        list_pods: Callable[[], Mapping[PodKey, PodFacts]],
        find_allocation: Callable[[str], Allocation | None],
        record: Callable[[Event], None],
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._rules = rules
        self._list_pods = list_pods
        self._reader = UseReader(prices, find_allocation)
        self._record = record
        self._is_loaded = False
        self._suspended: dict[Key, tuple[float, Owner]] = {}
        self._saved_s = 0.0

    @property
    def entries(self) -> list[Entry]:
        """The recommendations that are followed, or could be."""
        return list(self._ledger.entries.values())

    async def verify(self, assessment: Assessment) -> None:
        """Go on with all recommendations, and take in those of this round."""
        if not self._is_loaded:
            await self._ledger.load()
            self._is_loaded = True
        now_s = assessment.at_s
        groups = self._reader.read(self._list_pods().values(), assessment.verdicts)
        is_notable = False
        # First: an owner that followed advice since the last round may have new advice, for its new devices.
        for entry in self.entries:
            try:
                new = await self._advance(entry, groups.get(entry.key), now_s)
            except errors.KgweError as exc:
                log.warning("saving_not_verified", workload=entry.key, error=str(exc))
                continue
            is_notable |= (new.followed_s, new.ended_s, new.result) != (entry.followed_s, entry.ended_s, entry.result)
            self._ledger.put(new)
            self._forget(new, now_s)
        is_notable |= self._take_advice(assessment, groups)
        if is_notable or not 0 <= now_s - self._saved_s < _SAVE_S:
            await self._ledger.save(now_s)
            self._saved_s = now_s

    def describe(self, namespace: str, name: str) -> list[str]:
        """Return a sentence for each followed recommendation of an owner."""
        mine = (each for each in self.entries if (each.namespace, each.name) == (namespace, name))
        return [describe(each) for each in mine if each.followed_s is not None]

    # --- advice -----------------------------------------------------------------------------------------

    def _take_advice(self, assessment: Assessment, groups: Mapping[Key, OwnerUse]) -> bool:
        """Remember the advice of this round; return whether there is new advice."""
        advised: dict[Key, list[Assessed]] = defaultdict(list)
        for each in assessment.findings:
            if each.recommendation is not None and each.recommendation.alternative is not None:
                facts = each.facts
                advised[facts.key.namespace, facts.owner_kind, facts.owner_name].append(each)
        is_new = False
        for key, found in advised.items():
            old, group = self._ledger.entries.get(key), groups.get(key)
            if group is None or group.form is None or (old is not None and old.is_followed):
                continue
            new = _make_entry(key, found, group.form, assessment.at_s)
            if old is not None and old.ended_s is None and old.original == new.original:
                recent = (each for each in old.advice if assessment.at_s - each.at_s <= _FORGET_S)
                advice = (*new.advice, *(each for each in recent if each.form != new.latest.form))
                is_new |= new.latest.form != old.latest.form
                new = msgspec.structs.replace(old, advice=advice[:_MAX_ADVICE])
            else:
                # It had these devices in all of the judged window, which is longer than the time between two rounds.
                new = msgspec.structs.replace(new, before=Metered().add(self._rules.interval_s, group.per_hour))
                is_new = True
                if old is not None:
                    new = msgspec.structs.replace(new, earlier=old.earlier + (old.realized or 0.0))
            self._ledger.put(new)
        return is_new

    # --- one owner --------------------------------------------------------------------------------------

    async def _advance(self, entry: Entry, group: OwnerUse | None, now_s: float) -> Entry:
        """Return the entry with the time since the last round."""
        if entry.ended_s is not None:
            return entry
        if entry.followed_s is None:
            return await self._advance_open(entry, group, now_s)
        return await self._advance_followed(entry, group, now_s)

    async def _advance_open(self, entry: Entry, group: OwnerUse | None, now_s: float) -> Entry:
        if group is not None and group.form is not None:
            if (followed := _find_followed(entry, group.form)) is not None:
                return msgspec.structs.replace(entry, advice=(followed,), followed_s=now_s, seen_s=now_s)
            if group.form == entry.original:
                return msgspec.structs.replace(
                    entry, before=self._meter(entry, entry.before, group, now_s), seen_s=now_s
                )
        elif group is None:
            suspend = next((each for each in entry.advice if each.action == Action.SUSPEND), None)
            if suspend is not None and await self._find_suspended(entry, now_s) is not None:
                return msgspec.structs.replace(entry, advice=(suspend,), followed_s=now_s, seen_s=now_s)
        return msgspec.structs.replace(entry, seen_s=now_s)

    async def _advance_followed(self, entry: Entry, group: OwnerUse | None, now_s: float) -> Entry:
        owner = None
        if group is None:
            owner = await self._find_suspended(entry, now_s) if entry.latest.action == Action.SUSPEND else None
            if owner is None:
                return self._end_absent(entry, now_s)
            group = OwnerUse((), None, 0.0, None, entry.after.oom_kills)
        elif group.form is None:
            # It does not run: it neither works nor saves.
            return msgspec.structs.replace(entry, seen_s=now_s)
        is_original = group.form == entry.original
        after = entry.after if is_original else self._meter(entry, entry.after, group, now_s)
        found = verify_saving(
            entry.latest.promised_per_hour,
            entry.before.make_span(),
            after.make_span(is_original=is_original),
            min_hours=self._rules.after_s / _HOUR_S,
        )
        new = msgspec.structs.replace(
            entry,
            after=after,
            seen_s=now_s,
            ended_s=now_s if is_original else None,
            result=found.result,
            realized_per_hour=found.realized_per_hour,
            realized=found.realized,
            reason="; ".join(found.reasons),
        )
        if new.result != entry.result and new.result not in _UNSURE:
            self._tell(new, group.pods, owner)
        return new

    def _end_absent(self, entry: Entry, now_s: float) -> Entry:
        """Return the entry of an owner without pods. It may come back soon; else its saving has ended."""
        if now_s - entry.seen_s < _FORGET_S:
            return entry
        return msgspec.structs.replace(entry, ended_s=now_s)

    def _meter(self, entry: Entry, so_far: Metered, group: OwnerUse, now_s: float) -> Metered:
        # Pods hold their devices from start to end. Of another long time only the end is known.
        is_continuous = group.since_s <= entry.seen_s
        limit_s = math.inf if is_continuous else max(2 * self._rules.interval_s, _RECHECK_S)
        found = so_far.add(max(now_s - entry.seen_s, 0.0), group.per_hour, limit_s)
        kills = max(found.oom_kills, group.oom_kills)
        return msgspec.structs.replace(found, p95=group.p95 if group.p95 is not None else found.p95, oom_kills=kills)

    def _forget(self, entry: Entry, now_s: float) -> None:
        is_stale = entry.followed_s is None and now_s - entry.latest.at_s > _FORGET_S
        if is_stale or (entry.ended_s is not None and now_s - entry.ended_s > _KEEP_S):
            self._ledger.drop(entry.key)
            self._suspended.pop(entry.key, None)

    async def _find_suspended(self, entry: Entry, now_s: float) -> Owner | None:
        """Return the owner if it is suspended. A suspended one is not read again for some minutes."""
        known = self._suspended.get(entry.key)
        if known is not None and 0 <= now_s - known[0] < _RECHECK_S:
            return known[1]
        self._suspended.pop(entry.key, None)
        owner = await self._read_suspended(entry)
        if owner is not None:
            self._suspended[entry.key] = (now_s, owner)
        return owner

    async def _read_suspended(self, entry: Entry) -> Owner | None:
        for kind in KINDS:
            if kind.resource.kind != entry.kind:
                continue
            try:
                owner = Owner(kind, await self._client.get(kind.resource, entry.name, entry.namespace))
            except errors.NotFound:
                continue
            if is_suspended(owner):
                return owner
        return None

    def _tell(self, entry: Entry, pods: Sequence[PodFacts], owner: Owner | None) -> None:
        kind: Literal["Normal", "Warning"] = "Normal" if entry.result in _GOOD else "Warning"
        if pods:
            key = pods[0].key
            about = ObjectMeta(name=key.name, namespace=key.namespace, uid=pods[0].uid)
            self._record(Event(resources.POD, about, kind, f"Saving{entry.result}", describe(entry), "Verifying"))
        elif owner is not None:
            self._record(
                Event(owner.kind.resource, owner.meta, kind, f"Saving{entry.result}", describe(entry), "Verifying")
            )


def describe(entry: Entry) -> str:
    """Return what became of a followed recommendation, in one or two sentences."""
    advice = entry.latest
    text = f"Recommendation followed: {advice.target}. Result: {entry.result}"
    if entry.realized_per_hour is not None:
        text += f", ${entry.realized_per_hour:,.2f} per hour saved by metered use"
        if advice.promised_per_hour is not None:
            text += f", ${advice.promised_per_hour:,.2f} promised"
    return f"{text}; {entry.reason}." if entry.reason else f"{text}."


def _make_entry(key: Key, found: Sequence[Assessed], form: Form, now_s: float) -> Entry:
    """Return the entry of an owner. Its pods have the same advice; the saving is of all of them."""
    advised = [each.recommendation for each in found if each.recommendation is not None]
    first = advised[0]
    alternative = first.alternative
    savings = [each.hourly_saving for each in advised if each.hourly_saving is not None]
    advice = Advice(
        action=str(first.action),
        target=str(alternative),
        promised_per_hour=sum(savings) if len(savings) == len(advised) else None,
        form=_advise_form(alternative, form) if alternative is not None else form,
        at_s=now_s,
    )
    return Entry(*key, original=form, advice=(advice,), seen_s=now_s)


def _find_followed(entry: Entry, form: Form) -> Advice | None:
    """Return the recommendation whose devices the owner has now."""
    return next((each for each in entry.advice if form == each.form != entry.original), None)


def _advise_form(alternative: Alternative, form: Form) -> Form:
    model = name_model(alternative.model)
    match alternative.action:
        case Action.MIG_PROFILE:
            return Form(_MILLI * alternative.devices, alternative.mig_profile, model, form.is_spot)
        case Action.SHARE:
            return Form(share_milli(alternative.shares), "", model, form.is_spot)
        case Action.SMALLER_GPU | Action.FEWER_GPUS:
            return Form(_MILLI * alternative.devices, "", model, form.is_spot)
        case Action.SPOT:
            return Form(form.milli_gpus, form.mig_profile, model, is_spot=True)
    return Form()
