"""Without a kubelet to ask, all devices of a kind that a pod asks for may be its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from tests.support.machines.mig_driver import CuttableDriver

from kgwe.apps.agent.devices import claims
from kgwe.kube.api import resources
from kgwe.sharing.mig.lifecycle import Mode

if TYPE_CHECKING:
    from kgwe.kube.api import core


def pod(phase: str = "Running", **limits: str) -> core.Pod:
    body = {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(body, resources.POD.type)


def test_devices_of_a_kind_that_is_asked_for_are_claimed() -> None:
    driver = CuttableDriver(3)
    driver.benches["GPU-0"].cut("1g.10gb@0 1g.10gb@1 3g.40gb@4")
    driver.benches["GPU-1"].mode = Mode.OFF
    machine = asyncio.run(driver.machine())
    slices = pod(**{"nvidia.com/mig-1g.10gb": "1", "cpu": "1"})
    assert claims.find_claimed_devices(machine, [slices]) == {"MIG-GPU-0-1g.10gb@0", "MIG-GPU-0-1g.10gb@1"}
    assert claims.find_claimed_devices(machine, [pod(**{"nvidia.com/gpu": "1"})]) == {"GPU-1"}
    assert claims.find_claimed_devices(machine, [pod(**{"nvidia.com/gpu.shared": "1"})]) == {"GPU-1"}
    assert claims.find_claimed_devices(machine, [pod("Succeeded", **{"nvidia.com/gpu": "1"}), pod()]) == frozenset()


def test_a_resource_claim_may_be_for_any_device() -> None:
    driver = CuttableDriver(2)
    driver.benches["GPU-0"].cut("3g.40gb@4")
    machine = asyncio.run(driver.machine())
    body = {"metadata": {"name": "p"}, "spec": {"resourceClaims": [{"name": "x"}]}}
    claiming = msgspec.convert(body, resources.POD.type)
    assert claims.find_claimed_devices(machine, [claiming]) >= {"GPU-0", "GPU-1", "MIG-GPU-0-3g.40gb@4"}
