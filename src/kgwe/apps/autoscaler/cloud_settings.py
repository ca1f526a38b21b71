"""Settings of the clouds, one section each. Without a section a cloud is not configured, and no SDK is imported."""

from __future__ import annotations

from typing import Literal

import msgspec


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    pass


class Aws(_Section, frozen=True, kw_only=True):
    """Credentials come from IRSA, pod identity, the environment or the instance role."""

    region: str
    # Zone -> subnet of its nodes.
    subnets: dict[str, str] = {}
    # Launch from Auto Scaling groups that exist, instead of instant fleets.
    groups: bool = False
    # Another address of the API.
    endpoint_url: str = ""


class GcpGroup(_Section, frozen=True, kw_only=True):
    name: str
    zone: str
    instance_type: str
    capacity_type: Literal["spot", "on-demand", "reserved"] = "on-demand"


class Gcp(_Section, frozen=True, kw_only=True):
    """Credentials come from Workload Identity, the environment or the metadata server."""

    project: str
    # Pool -> managed instance group. With groups, nodes come from resize requests; without, from bulk inserts.
    groups: dict[str, GcpGroup] = {}
    endpoint: str = ""


class AzureScaleSet(_Section, frozen=True, kw_only=True):
    name: str
    capacity_type: Literal["spot", "on-demand", "reserved"] = "on-demand"
    limit: int = 1000


class Azure(_Section, frozen=True, kw_only=True):
    """Credentials come from workload identity, managed identity or the environment."""

    subscription: str
    resource_group: str
    # Pool -> scale set.
    scale_sets: dict[str, AzureScaleSet] = {}
    endpoint: str = ""


class Karpenter(_Section, frozen=True, kw_only=True):
    """NodeClaims of this cluster; for policies with the provider `custom`."""
