"""The plugin's process is killed at any moment; no card ever has two holders, and pods still get their plans."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.support.fakes import kubelet as bed
from tests.support.fakes.kubelet import GPU, Kubelet, Refused, pod, until

from kgwe.model.devices.assignment import DeviceSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api import core

SHARED = "nvidia.com/gpu.shared"
SCRIPT = Path(__file__).parents[2] / "support" / "machines" / "plugin_process.py"
ROUNDS = pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.slow)])


async def start(root: Path, pieces: int = 0) -> asyncio.subprocess.Process:
    log = (root / "plugin.log").open("ab")
    with log:
        return await asyncio.create_subprocess_exec(sys.executable, SCRIPT, root, str(pieces), stdout=log, stderr=log)


def write(root: Path, pods: Sequence[core.Pod]) -> None:
    scratch = root / "pods.new"
    scratch.write_bytes(msgspec.json.encode(pods))
    scratch.rename(root / "pods.json")


@ROUNDS
async def test_kill_at_any_moment(rounds: int):
    rng = random.Random(3)
    with bed.folder() as root:
        kubelet = Kubelet(root)
        await kubelet.start()
        alive: dict[str, core.Pod] = {}
        write(root, [])
        process = await start(root)
        served = 0
        try:
            for turn in range(rounds):
                await _registered(kubelet, turn + 1)
                served += await _admit_some(kubelet, root, alive, rng, turn, process)
                await process.wait()
                process = await start(root)
                assert len(kubelet.in_use()) == len(set(kubelet.in_use()))
            await _registered(kubelet, rounds + 1)
            for old in alive.values():
                kubelet.end(old)
            assert served >= rounds
            last = pod("last", 3, plan=DeviceSet(0b1010_1000))
            write(root, [last])
            await kubelet.admit(last)
            assert kubelet.held("team/last") == {"GPU-3", "GPU-5", "GPU-7"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await kubelet.stop()


@ROUNDS
async def test_pieces_have_one_holder_whenever_it_is_killed(rounds: int):
    """Every round the plugin is killed while pods come, planned on cards that have a piece left."""
    rng = random.Random(4)
    with bed.folder() as root:
        kubelet = Kubelet(root)
        await kubelet.start()
        alive: dict[str, core.Pod] = {}
        write(root, [])
        process = await start(root, pieces=2)
        try:
            for turn in range(rounds):
                await _registered(kubelet, turn + 1, SHARED, 16)
                await _share_some(kubelet, root, alive, rng, turn, process)
                await process.wait()
                process = await start(root, pieces=2)
                assert len(kubelet.in_use(SHARED)) == len(set(kubelet.in_use(SHARED))) == len(alive)
            assert alive
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await kubelet.stop()


async def _share_some(kubelet, root, alive, rng, turn, process):
    """Pods come until the plugin is killed amid them."""
    doomed = rng.randint(1, 12)
    for number in range(40):
        if number == doomed:
            asyncio.get_running_loop().call_later(rng.uniform(0.0, 0.005), process.kill)
        free = sorted(kubelet.devices[SHARED].keys() - set(kubelet.in_use(SHARED)))
        if not free:
            kubelet.end(alive.pop(rng.choice(sorted(alive))))
            continue
        card = int(rng.choice(free).partition("::")[0].removeprefix("GPU-"))
        made = pod(f"p{turn}-{number}", 1, resource=SHARED, plan=DeviceSet(1 << card))
        write(root, [*alive.values(), made])
        try:
            await kubelet.admit(made)
        except Refused:
            break
        alive[made.metadata.key] = made
        assert {each.partition("::")[0] for each in kubelet.held(made.metadata.key, SHARED)} == {f"GPU-{card}"}
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _registered(kubelet, times, resource=GPU, devices=8):
    await until(
        lambda: kubelet.registrations.count(resource) == times and len(kubelet.healthy(resource)) == devices, 30
    )


async def _admit_some(kubelet, root, alive, rng, turn, process):
    """Pods come, each planned on free cards, until the plugin is killed amid them; returns how many got theirs."""
    served = 0
    doomed = rng.randint(1, 12)
    for number in range(40):
        if served == doomed:
            asyncio.get_running_loop().call_later(rng.uniform(0.0, 0.005), process.kill)
            doomed = -1
        free = sorted({f"GPU-{i}" for i in range(8)} - set(kubelet.in_use()))
        if len(free) < 2:
            kubelet.end(alive.pop(rng.choice(sorted(alive))))
            continue
        want = set(rng.sample(free, 2))
        made = pod(f"p{turn}-{number}", 2, plan=DeviceSet(sum(1 << int(each[4:]) for each in want)))
        write(root, [*alive.values(), made])
        try:
            await kubelet.admit(made)
        except Refused:
            break
        alive[made.metadata.key] = made
        served += 1
        assert kubelet.held(made.metadata.key) == want
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    return served
