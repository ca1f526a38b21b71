"""The cutter on cards in memory: what is asked becomes so, what is in use stays, what fails is taken back."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.machines.mig_driver import CuttableDriver
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.apps.agent.mig.reconfigurer import MigReconfigurer
from kgwe.apps.agent.status import gpunode_status
from kgwe.kube.api.kgwe.gpunode import MIGLayout
from kgwe.sharing.mig.attempt import Limits
from kgwe.sharing.mig.lifecycle import Life, Mode


class Kubelet:
    """Says who has what."""

    def __init__(self, *uuids: str) -> None:
        self.held: frozenset[str] | None = frozenset(uuids)

    async def __call__(self) -> frozenset[str] | None:
        return self.held


def cut(*names: str) -> MIGLayout:
    return MIGLayout(enabled=True, instances=names)


WHOLE = MIGLayout(enabled=False)


async def rounds(cutter: MigReconfigurer, most: int = 60) -> None:
    for _ in range(most):
        if not await cutter.step():
            return
    raise AssertionError("no end")


def settle(driver: CuttableDriver, cutter: MigReconfigurer, **cards: MIGLayout) -> None:
    cutter.set_layouts({uuid.replace("_", "-"): layout for uuid, layout in cards.items()})
    asyncio.run(rounds(cutter))
    for bench in driver.benches.values():
        bench.check()


def test_cards_become_as_asked_and_others_are_left_alone() -> None:
    driver = CuttableDriver(3, mode=Mode.OFF)
    driver.benches["GPU-2"].mode = Mode.ON
    driver.benches["GPU-2"].cut("7g.80gb@0")
    cutter = MigReconfigurer(driver, users=Kubelet())
    settle(driver, cutter, GPU_0=cut("3g.40gb@4", "4g.40gb@0"), GPU_1=WHOLE)
    assert driver.benches["GPU-0"].names() == ["4g.40gb@0", "3g.40gb@4"]
    assert driver.benches["GPU-1"].log == []
    assert driver.benches["GPU-2"].names() == ["7g.80gb@0"]
    assert {each.phase for each in cutter.progress.values()} == {""}
    assert not cutter.withheld
    settle(driver, cutter, GPU_0=WHOLE)
    assert driver.benches["GPU-0"].mode is Mode.OFF


def test_what_has_to_change_is_withheld_before_it_is_asked_who_has_it() -> None:
    """A pod that is given a slice at the last moment keeps it."""
    driver = CuttableDriver(1)
    driver.benches["GPU-0"].cut("1g.10gb@4 1g.10gb@5")
    kubelet = Kubelet()
    told: list[frozenset[str]] = []

    async def withhold() -> None:
        told.append(cutter.withheld)
        if len(told) == 1:
            kubelet.held = frozenset({"MIG-GPU-0-1g.10gb@5"})

    cutter = MigReconfigurer(driver, users=kubelet, on_withhold=withhold)
    settle(driver, cutter, GPU_0=cut("3g.40gb@4"))
    assert told[0] == {"MIG-GPU-0-1g.10gb@4", "MIG-GPU-0-1g.10gb@5"}
    assert driver.benches["GPU-0"].names() == ["1g.10gb@5"]
    assert cutter.progress["GPU-0"].phase == "Waiting"
    assert "1g.10gb@5 is allocated" in cutter.progress["GPU-0"].message
    assert cutter.withheld == {"MIG-GPU-0-1g.10gb@5"}
    kubelet.held = frozenset()
    asyncio.run(rounds(cutter))
    assert driver.benches["GPU-0"].names() == ["3g.40gb@4"]
    assert told[-1] == frozenset()


def test_a_whole_card_is_withheld_until_it_is_cut() -> None:
    driver = CuttableDriver(1, mode=Mode.OFF, needs_reset=True)
    kubelet = Kubelet("GPU-0")
    cutter = MigReconfigurer(driver, users=kubelet)
    settle(driver, cutter, GPU_0=cut("7g.80gb@0"))
    assert (cutter.withheld, cutter.progress["GPU-0"].phase) == (frozenset({"GPU-0"}), "Waiting")
    kubelet.held = frozenset()
    driver.busy = {"GPU-0"}
    asyncio.run(rounds(cutter))
    assert cutter.progress["GPU-0"].phase == "Waiting", "its process has not ended"
    driver.busy = set()
    asyncio.run(rounds(cutter))
    assert (cutter.withheld, driver.benches["GPU-0"].names()) == (frozenset(), ["7g.80gb@0"])


def test_while_the_kubelet_does_not_answer_nothing_that_is_there_is_touched() -> None:
    driver = CuttableDriver(1)
    driver.benches["GPU-0"].cut("1g.10gb@6")
    kubelet = Kubelet()
    kubelet.held = None
    cutter = MigReconfigurer(driver, users=kubelet)
    settle(driver, cutter, GPU_0=cut("3g.40gb@0"))
    assert driver.benches["GPU-0"].names() == ["3g.40gb@0", "1g.10gb@6"]
    kubelet.held = frozenset()
    asyncio.run(rounds(cutter))
    assert driver.benches["GPU-0"].names() == ["3g.40gb@0"]


def test_what_fails_is_taken_back_and_said() -> None:
    driver = CuttableDriver(1)
    driver.benches["GPU-0"].cut("3g.40gb@0", Life.IN_USE)
    driver.benches["GPU-0"].cut("2g.20gb@4 1g.10gb@6")
    driver.failures["create 3g.40gb@4"] = errors.Permanent("insufficient resources")
    cutter = MigReconfigurer(driver, users=Kubelet("MIG-GPU-0-3g.40gb@0"))
    settle(driver, cutter, GPU_0=cut("3g.40gb@0", "3g.40gb@4"))
    assert driver.benches["GPU-0"].names() == ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]
    assert cutter.progress["GPU-0"].phase == "RolledBack"
    assert cutter.progress["GPU-0"].message == "create 3g.40gb@4: insufficient resources"
    assert not cutter.withheld, "what is there may be given again"
    driver.failures.clear()
    settle(driver, cutter, GPU_0=cut("3g.40gb@0", "4g.40gb@0"))
    assert cutter.progress["GPU-0"].phase == "Failed"
    assert "overlaps" in cutter.progress["GPU-0"].message


def test_a_busy_driver_is_asked_again_and_a_slow_cut_is_taken_back() -> None:
    driver = CuttableDriver(1)
    driver.failures["create 7g.80gb@0"] = errors.Transient("busy")
    now = [0.0]
    cutter = MigReconfigurer(driver, users=Kubelet(), limits=Limits(max_failures=1000), clock=lambda: now[0])
    settle(driver, cutter, GPU_0=cut("7g.80gb@0"))
    assert cutter.progress["GPU-0"].phase == "Cutting"
    now[0] = 61.0
    asyncio.run(rounds(cutter))
    assert cutter.progress["GPU-0"].phase == "RolledBack"
    assert "not done within 60 s" in cutter.progress["GPU-0"].message
    driver.failures.clear()
    now[0] = 400.0
    asyncio.run(rounds(cutter))
    assert driver.benches["GPU-0"].names() == ["7g.80gb@0"]


def test_a_call_cuts_at_once_or_not_at_all() -> None:
    driver = CuttableDriver(2)
    kubelet = Kubelet("MIG-GPU-1-1g.10gb@0")
    driver.benches["GPU-1"].cut("1g.10gb@0", Life.ALLOCATED)
    cutter = MigReconfigurer(driver, users=kubelet, retry_s=0.001)
    made = asyncio.run(cutter.apply_layout("GPU-0", enabled=True, layout=["2g.20gb@2"]))
    assert [(each.profile, each.start) for each in made] == [("2g.20gb", 2)]
    with pytest.raises(errors.Conflict, match=r"1g.10gb@0 is allocated"):
        asyncio.run(cutter.apply_layout("GPU-1", enabled=True, layout=["7g.80gb@0"]))
    kubelet.held = frozenset()
    asyncio.run(rounds(cutter))
    assert driver.benches["GPU-1"].names() == ["1g.10gb@0"], "not later, behind the caller's back"
    with pytest.raises(errors.Permanent, match="is no place on"):
        asyncio.run(cutter.apply_layout("GPU-0", enabled=True, layout=["3g.40gb@1"]))
    with pytest.raises(errors.NotFound):
        asyncio.run(cutter.apply_layout("GPU-9", enabled=False, layout=[]))
    driver.failures["create 7g.80gb@0"] = errors.Transient("busy")
    with pytest.raises(errors.Conflict, match="busy"):
        asyncio.run(cutter.apply_layout("GPU-0", enabled=True, layout=["7g.80gb@0"]))
    assert driver.benches["GPU-0"].names() == ["2g.20gb@2"]


def test_what_a_call_asked_stands_until_the_spec_changes() -> None:
    driver = CuttableDriver(1)
    cutter = MigReconfigurer(driver, users=Kubelet())
    settle(driver, cutter, GPU_0=cut("1g.10gb@0"))
    asyncio.run(cutter.apply_layout("GPU-0", enabled=True, layout=["1g.10gb@1"]))
    settle(driver, cutter, GPU_0=cut("1g.10gb@0"))
    assert driver.benches["GPU-0"].names() == ["1g.10gb@1"]
    settle(driver, cutter, GPU_0=cut("1g.10gb@2"))
    assert driver.benches["GPU-0"].names() == ["1g.10gb@2"]


@pytest.mark.parametrize(
    ("product", "lost", "said"),
    [("NVIDIA L40S", (), "does not support MIG"), ("NVIDIA X1", (), "no GPU model"), (None, ("GPU-0",), "off the bus")],
)
def test_cards_that_cannot_be_cut_say_so(product: str | None, lost: tuple[str, ...], said: str) -> None:
    driver = CuttableDriver(1)
    driver.product, driver.lost = product or driver.product, set(lost)
    cutter = MigReconfigurer(driver)
    settle(driver, cutter, GPU_0=cut("7g.80gb@0"), GPU_5=WHOLE)
    assert cutter.progress["GPU-0"].phase == "Failed"
    assert said in cutter.progress["GPU-0"].message
    assert cutter.progress["GPU-5"].message == "no such GPU on this node"


def test_the_status_says_what_is_being_done() -> None:
    driver = CuttableDriver(2)
    driver.benches["GPU-1"].cut("1g.10gb@0", Life.ALLOCATED)
    changes: list[int] = []
    users = Kubelet("MIG-GPU-1-1g.10gb@0")
    cutter = MigReconfigurer(driver, users=users, on_change=lambda: changes.append(1))
    settle(driver, cutter, GPU_0=cut("7g.80gb@0"), GPU_1=cut())
    status = cutter.amend_status(gpunode_status.build_status(asyncio.run(driver.machine())))
    assert [each.mig.phase for each in status.gpus] == ["", "Waiting"]
    assert status.gpus[1].mig.message == "1g.10gb@0 is allocated"
    assert changes


def test_it_runs_by_itself() -> None:
    driver = CuttableDriver(1)

    async def go() -> None:
        there = asyncio.Event()

        def on_change() -> None:
            if driver.benches["GPU-0"].names():
                there.set()

        cutter = MigReconfigurer(driver, users=Kubelet(), on_change=on_change)
        task = asyncio.create_task(cutter.run())
        try:
            cutter.set_layouts({"GPU-0": cut("7g.80gb@0")})
            await asyncio.wait_for(there.wait(), PATIENCE_S)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(go())
