"""Replies depend only on what a user may list: hidden objects can be removed, and no reply changes."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Any

import pytest
from tests.support.fakes.console_bed import Grants, make_fleet, make_pod, make_workload, open_console

SPACES = ("a", "b", "c")
NAMESPACED = {
    "Pod": "pods",
    "GPUWorkload.kgwe.nvidia.io": "gpuworkloads.kgwe.nvidia.io",
    "GPUWorkload.gpu.warp.dev": "gpuworkloads.gpu.warp.dev",
    "GPUBudget": "gpubudgets.kgwe.nvidia.io",
}
WIDE = {
    "Node": "nodes",
    "GPUNode": "gpunodes.kgwe.nvidia.io",
    "AutoscalingPolicy": "autoscalingpolicies.kgwe.nvidia.io",
}
JOBS = "jobs.batch"
LISTS = ("overview", "fleet", "workloads", "queue", "health", "autoscaler", "budgets", "decisions")


@functools.cache
def fleet() -> tuple[dict[str, Any], ...]:
    return tuple(make_fleet(3))


def make_world(rng: random.Random) -> list[dict[str, Any]]:
    """Objects of three namespaces; no node has more pods than GPUs."""
    found: list[dict[str, Any]] = list(fleet())
    free = dict.fromkeys((each["metadata"]["name"] for each in found if each["kind"] == "Node"), 8)
    for number in range(rng.randrange(4, 12)):
        space, gpus = rng.choice(SPACES), rng.choice((1, 2, 4))
        node = rng.choice([*(name for name, left in free.items() if left >= gpus), ""])
        if node:
            free[node] -= gpus
        found.append(make_pod(space, f"p{number}", gpus, node))
    for number in range(rng.randrange(2, 6)):
        space = rng.choice(SPACES)
        found.append(make_workload(space, f"w{number}", rng.choice((1, 8, 64)), phase="Pending", message=f"of {space}"))
    found += [make_warp(rng.choice(SPACES), f"x{number}") for number in range(2)]
    found += [make_budget(rng.choice(SPACES), f"budget{number}") for number in range(2)]
    found.append(
        {
            "apiVersion": "kgwe.nvidia.io/v1",
            "kind": "AutoscalingPolicy",
            "metadata": {"name": "grow"},
            "spec": {"provider": "kwok"},
        }
    )
    return found


def make_warp(space: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPUWorkload",
        "metadata": {"namespace": space, "name": name, "uid": f"uid-{space}-{name}"},
        "spec": {"modelName": "m", "gpuCount": 2},
    }


def make_budget(space: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUBudget",
        "metadata": {"namespace": space, "name": name},
        "spec": {"limit": "10", "period": "Daily"},
        "status": {"currentSpend": "20"},
    }


def make_grants(rng: random.Random) -> Grants:
    """Each right in all namespaces, in some of them, or nowhere."""
    found = {(name, "") for name in WIDE.values() if rng.random() < 0.6}
    for name in (*NAMESPACED.values(), JOBS):
        kind = rng.random()
        if kind < 0.2:
            found.add((name, ""))
        else:
            found |= {(name, space) for space in SPACES if rng.random() < 0.5}
    return frozenset(found)


def is_visible(obj: dict[str, Any], grants: Grants) -> bool:
    kind = obj["kind"]
    if kind in WIDE:
        return (WIDE[kind], "") in grants
    group = obj["apiVersion"].partition("/")[0]
    name = NAMESPACED.get(kind) or NAMESPACED[f"{kind}.{group}"]
    return (name, "") in grants or (name, obj["metadata"]["namespace"]) in grants


async def read_all(objects: list[dict[str, Any]], subjects: list[str], grants: Grants) -> dict[str, Any]:
    """Return all that a user with these rights is shown, without version numbers."""
    async with open_console(objects) as bed:
        bed.rights.grants["u"] = grants
        found: dict[str, Any] = {}
        for path in (*(f"/api/v1/{each}" for each in LISTS), *subjects):
            answer = await bed.get(path, "u")
            found[path] = answer.status, answer.json()
        found["/api/v1/fleet"][1].pop("version")
        return found


def check(seed: int) -> None:
    rng = random.Random(seed)
    world, grants = make_world(rng), make_grants(rng)
    subjects = [
        f"/api/v1/explain/{each['metadata']['namespace']}/{each['metadata']['name']}"
        for each in world
        if each["kind"] in ("Pod", "GPUWorkload")
    ]

    async def compare() -> tuple[dict[str, Any], dict[str, Any]]:
        visible = [each for each in world if is_visible(each, grants)]
        return await read_all(world, subjects, grants), await read_all(visible, subjects, grants)

    whole, visible = asyncio.run(compare())
    for path, reply in whole.items():
        assert reply == visible[path], (seed, path, sorted(grants))
    # What may be listed is shown.
    shown = {(each["namespace"], each["name"]) for each in whole["/api/v1/workloads"][1]["items"]}
    wanted = [each for each in world if each["kind"] in ("Pod", "GPUWorkload") and is_visible(each, grants)]
    assert shown == {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in wanted}, (seed, grants)
    nodes = {each["name"] for each in whole["/api/v1/fleet"][1]["nodes"]}
    assert len(nodes) == (3 if ("nodes", "") in grants else 0)
    assert whole["/api/v1/autoscaler"][1]["visible"] == ((WIDE["AutoscalingPolicy"], "") in grants)


@pytest.mark.parametrize("seed", range(6))
def test_what_a_user_may_not_list_changes_no_reply(seed: int) -> None:
    check(seed)


@pytest.mark.soak
def test_200_random_rights_show_exactly_what_may_be_listed() -> None:
    for seed in range(1000, 1200):
        check(seed)
