"""Columns of FOCUS files by version, and our own, which begin with `x_`."""

from __future__ import annotations

import enum
from typing import Final

from kgwe import errors


class FocusVersion(enum.StrEnum):
    """A version of the format."""

    V1_2 = "1.2"
    V1_3 = "1.3"


def parse_version(text: str) -> FocusVersion:
    """Return the version of a text; raise Permanent with the known ones."""
    try:
        return FocusVersion(text)
    except ValueError:
        raise errors.Permanent(f"FOCUS version {text!r} is not known; it is one of {', '.join(FocusVersion)}") from None


_COMMON: Final = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName",
    "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType", "CommitmentDiscountUnit",
    "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceId", "InvoiceIssuerName",
    "ListCost", "PricingCategory", "PricingQuantity", "PricingUnit", "RegionId", "RegionName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SubAccountId",
    "SubAccountName", "Tags",
)  # fmt: skip
_ONLY_1_2: Final = ("ProviderName", "PublisherName")
_ONLY_1_3: Final = (
    "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags",
    "HostProviderName", "ServiceProviderName",
)  # fmt: skip
#: Our own columns: what FOCUS has no place for.
OWN: Final = (
    "x_CapacityType", "x_CostCenter", "x_Experiment", "x_GpuHours", "x_GpuModel", "x_IdleCost", "x_InstanceType",
    "x_Line", "x_Namespace", "x_Node", "x_Part", "x_Pod", "x_PriceVersion", "x_Project", "x_SplitMethod", "x_Team",
    "x_UnmeasuredCost", "x_UsedCost", "x_User", "x_Workload",
)  # fmt: skip
#: Amounts and quantities; all others are texts.
NUMBERS: Final = frozenset(
    {
        *("BilledCost", "ConsumedQuantity", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity"),
        *("x_GpuHours", "x_IdleCost", "x_UnmeasuredCost", "x_UsedCost"),
    }
)
#: Dates and times.
TIMES: Final = frozenset({"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"})


def list_columns(version: FocusVersion) -> tuple[str, ...]:
    """Return the columns of a version in alphabetical order, ours last."""
    own = _ONLY_1_2 if version is FocusVersion.V1_2 else _ONLY_1_3
    return (*sorted((*_COMMON, *own)), *OWN)
