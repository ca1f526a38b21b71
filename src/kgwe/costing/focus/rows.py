"""Charges as FOCUS rows. All costs are whole micro-dollars, and the rows of a file sum to its total.

1.2   The resource of a row is the pod, or the node where no pod held it. The sub-account is the namespace.
1.3   The resource is the node, whose cost is the origin charge. Each row is an allocated charge: which pod it is for,
      by which method, and which part of the origin. The parts of a node and period sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.costing import dates, money
from kgwe.costing.charges import divide_signed
from kgwe.costing.focus.columns import FocusVersion, list_columns
from kgwe.costing.money import HOUR_S
from kgwe.costing.prices.book import Capacity
from kgwe.costing.reports.values import amount
from kgwe.costing.segments import PPM, Bucket, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kgwe.costing.charges import Charge
    from kgwe.costing.segments import Account

#: Lines of the books that are no part of the fleet's cost, or the sum of the others.
_LEFT_OUT: Final = frozenset({Bucket.FLEET, Bucket.QUOTA_HELD})
_CATEGORIES: Final = {
    Capacity.ON_DEMAND.value: "Standard",
    Capacity.SPOT.value: "Dynamic",
    Capacity.RESERVED.value: "Committed",
}
_LINES: Final = {
    Bucket.ALLOCATED: "allocated",
    Bucket.OVERHEAD: "overhead",
    Bucket.UNALLOCATED: "unallocated",
    Bucket.RESERVED_IDLE: "reserved-idle",
    Bucket.BILLED_ONLY: "billed-only",
}
_PARTS: Final = {Part.NODE: "node", Part.GPU: "gpu", Part.SLICE: "slice", Part.SHARE: "share", Part.HOST: "host"}
_RATIO_DIGITS: Final = 12
_MONTH_AND_A_DAY_S: Final = 32 * 86_400


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is, and what its cloud calls it."""

    provider_id: str = ""
    region: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who the file is from."""

    account: str = "kgwe"
    """The billing account: the cluster."""
    provider: str = "KGWE"
    currency: str = "USD"
    method: str = "unknown"
    """How a node's price is split."""


def list_rows(
    version: FocusVersion, charges: Sequence[Charge], nodes: Mapping[str, NodePlace], issuer: Issuer
) -> Iterator[dict[str, str | None]]:
    """Yield the rows of charges, with all columns of the version. None is null."""
    wanted = [each for each in charges if each.bucket not in _LEFT_OUT and (each.sums.ticks or each.sums.ppm_s)]
    costs = money.round_lines([each.sums.ticks for each in wanted])
    ratios = _list_ratios(wanted) if version is FocusVersion.V1_3 else [0] * len(wanted)
    empty: dict[str, str | None] = dict.fromkeys(list_columns(version))
    for charge, micros, ratio in zip(wanted, costs, ratios, strict=True):
        place = nodes.get(charge.place.node, NodePlace())
        row = empty | _describe(charge, micros, place, issuer)
        if version is FocusVersion.V1_3:
            row |= _allocate(charge, ratio, place, issuer)
        else:
            row |= _name_resource(charge, place, issuer)
        yield {name: row[name] for name in empty}


def _describe(charge: Charge, micros: int, place: NodePlace, issuer: Issuer) -> dict[str, str | None]:
    """Return what both versions have."""
    cost = amount(micros)
    sums = charge.sums
    used = idle = 0
    unmeasured = micros
    if sums.measured_ticks and sums.ticks:
        weights = [sums.used_ticks, sums.idle_ticks, sums.ticks - sums.measured_ticks]
        used, idle, unmeasured = divide_signed(micros, weights)
    gpu_hours = _decimal(sums.ppm_s, PPM * HOUR_S)
    start, end = find_month(charge.start_s)
    account = charge.account
    return {
        "AvailabilityZone": place.zone or None,
        "BilledCost": cost,
        "BillingAccountId": issuer.account,
        "BillingAccountName": issuer.account,
        "BillingCurrency": issuer.currency,
        "BillingPeriodEnd": dates.format_time(end),
        "BillingPeriodStart": dates.format_time(start),
        "ChargeCategory": "Usage",
        "ChargeDescription": _explain(charge),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": dates.format_time(charge.end_s),
        "ChargePeriodStart": dates.format_time(charge.start_s),
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": issuer.provider,
        "ListCost": cost,
        "PricingCategory": _CATEGORIES.get(charge.place.capacity, "Other"),
        "RegionId": place.region or None,
        "RegionName": place.region or None,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU nodes",
        "ServiceSubcategory": "Containers",
        "x_CapacityType": charge.place.capacity or None,
        "x_CostCenter": account.cost_center or None,
        "x_Experiment": account.experiment or None,
        "x_GpuHours": gpu_hours,
        "x_GpuModel": charge.place.model or None,
        "x_IdleCost": amount(idle),
        "x_InstanceType": charge.place.instance_type or None,
        "x_Line": _LINES[charge.bucket],
        "x_Namespace": account.namespace or None,
        "x_Node": charge.place.node or None,
        "x_Part": _PARTS[charge.place.part],
        "x_Pod": charge.pod or None,
        "x_PriceVersion": charge.price or None,
        "x_Project": account.project or None,
        "x_SplitMethod": issuer.method,
        "x_Team": account.team or None,
        "x_UnmeasuredCost": amount(unmeasured),
        "x_UsedCost": amount(used),
        "x_User": account.user or None,
        "x_Workload": charge.workload or None,
    }


def _name_resource(charge: Charge, place: NodePlace, issuer: Issuer) -> dict[str, str | None]:
    """Return the columns of 1.2: the pod is the resource, the namespace the sub-account."""
    namespace = charge.account.namespace
    node = charge.place.node or issuer.account
    is_gpu = bool(charge.sums.ppm_s)
    quantity = _decimal(charge.sums.ppm_s, PPM * HOUR_S) if is_gpu else _decimal(charge.seconds, HOUR_S)
    unit = "GPU-Hours" if is_gpu else "Hours"
    return {
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "ProviderName": issuer.provider,
        "PublisherName": issuer.provider,
        "ResourceId": f"{namespace}/{charge.pod}" if charge.pod else place.provider_id or node,
        "ResourceName": charge.pod or node,
        "ResourceType": "Pod" if charge.pod else "Node",
        "SubAccountId": namespace or None,
        "SubAccountName": namespace or None,
        "Tags": _encode_tags(charge.account),
    }


def _allocate(charge: Charge, ratio: int, place: NodePlace, issuer: Issuer) -> dict[str, str | None]:
    """Return the columns of 1.3: the node is the resource, the pod what a part of it is allocated to."""
    node = charge.place.node or issuer.account
    hours = charge.end_s - charge.start_s
    quantity = _decimal(ratio * hours, 10**_RATIO_DIGITS * HOUR_S, _RATIO_DIGITS)
    element = {
        "AllocatedRatio": msgspec.Raw(_decimal(ratio, 10**_RATIO_DIGITS, _RATIO_DIGITS).encode()),
        "UsageUnit": "Hours",
        "UsageQuantity": msgspec.Raw(quantity.encode()),
        "x_SplitMethod": issuer.method,
    }
    namespace = charge.account.namespace
    return {
        "AllocatedMethodDetails": msgspec.json.encode({"Elements": [element]}).decode(),
        "AllocatedMethodId": f"kgwe-{issuer.method}",
        "AllocatedResourceId": f"{namespace}/{charge.pod}" if charge.pod else f"{node}/{_LINES[charge.bucket]}",
        "AllocatedResourceName": charge.pod or _LINES[charge.bucket],
        "AllocatedTags": _encode_tags(charge.account),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": "Hours",
        "HostProviderName": _name_cloud(place.provider_id) or issuer.provider,
        "PricingQuantity": quantity,
        "PricingUnit": "Hours",
        "ResourceId": place.provider_id or node,
        "ResourceName": node,
        "ResourceType": "Node",
        "ServiceProviderName": issuer.provider,
    }


def _list_ratios(charges: Sequence[Charge]) -> list[int]:
    """Return the part of its node and period that each charge is, in units of 10^-12. Those of a node sum to 1."""
    groups: dict[tuple[str, int], list[int]] = {}
    for number, each in enumerate(charges):
        groups.setdefault((each.place.node, each.start_s), []).append(number)
    found = [0] * len(charges)
    for members in groups.values():
        weights = [max(charges[number].sums.ticks, 0) for number in members]
        if not any(weights):
            weights = [charges[number].sums.ppm_s or 1 for number in members]
        for number, part in zip(members, money.divide(10**_RATIO_DIGITS, weights), strict=True):
            found[number] = part
    return found


def find_month(at_s: int) -> tuple[int, int]:
    """Return the first second of a month in UTC, and of the next one."""
    start_s = dates.parse_time(dates.format_time(at_s)[:7] + "-01")
    return start_s, dates.parse_time(dates.format_time(start_s + _MONTH_AND_A_DAY_S)[:7] + "-01")


def _explain(charge: Charge) -> str:
    what = f"{charge.place.model or 'GPU'} {_PARTS[charge.place.part]}" if charge.sums.ppm_s else "CPU and memory"
    if charge.pod:
        return f"{what} of {charge.place.node} held by {charge.account.namespace}/{charge.pod}"
    return f"{what} of {charge.place.node or 'the fleet'}: {_LINES[charge.bucket]}"


def _encode_tags(account: Account) -> str:
    names = ("namespace", "team", "project", "cost_center", "experiment", "user")
    return msgspec.json.encode(
        {name.replace("_", "-"): getattr(account, name) for name in names if getattr(account, name)}
    ).decode()


def _name_cloud(provider_id: str) -> str:
    scheme = provider_id.partition(":")[0] if "://" in provider_id else ""
    return {"aws": "AWS", "gce": "Google Cloud", "azure": "Microsoft Azure"}.get(scheme, scheme)


def _decimal(numerator: int, denominator: int, digits: int = 9) -> str:
    """Return a decimal text without an exponent, half up."""
    scaled = (2 * numerator * 10**digits + denominator) // (2 * denominator)
    whole, rest = divmod(scaled, 10**digits)
    return f"{whole}.{rest:0{digits}d}"
