"""What the autoscaler relies on in a provider. Each clause takes a bed: a provider, and the cloud it talks to.

Every provider of `kgwe.cloud` passes it, and so does the cloud in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest

from kgwe.cloud.provider import GangSupport, InstanceState, LaunchError, LaunchErrorKind

if TYPE_CHECKING:
    from kgwe.cloud.provider import LaunchRequest, Provider


class ProviderBed(Protocol):
    """A provider and its cloud."""

    provider: Provider
    kinds: tuple[LaunchErrorKind, ...]
    """Kinds of errors that this cloud can show."""

    def reopen(self) -> Provider:
        """Return the provider of another process: the same cloud and cluster, nothing remembered."""

    def make_request(self, request_id: str, count: int = 1, *, atomic: bool = False) -> LaunchRequest: ...

    def set_capacity(self, instances: int) -> None:
        """Let the cloud have so many more instances."""

    def fail_next(self, kind: LaunchErrorKind) -> None:
        """Let the next call fail in the cloud's own words."""

    def lose_answer(self) -> None:
        """Let the next launch act, but lose its answer."""

    async def add_foreign(self) -> str:
        """Launch an instance of another owner in the same cloud; return its id."""

    def is_alive(self, provider_id: str) -> bool: ...

    def count_alive(self) -> int:
        """Count the instances of the provider's cluster that cost money."""


async def a_launch_returns_what_was_asked_for(bed: ProviderBed) -> None:
    request = bed.make_request("r-1", 2)
    result = await bed.provider.launch(request)
    assert result.error is None
    assert len({each.provider_id for each in result.instances}) == 2
    for each in result.instances:
        assert (each.request_id, each.pool) == ("r-1", request.pool)
        assert (each.instance_type, each.zone) == (request.instance_type, request.zone)
        assert each.capacity_type is request.capacity_type
        assert each.state in {InstanceState.LAUNCHING, InstanceState.RUNNING}


async def the_same_request_buys_once(bed: ProviderBed) -> None:
    first = await bed.provider.launch(bed.make_request("r-1", 2))
    again = await bed.provider.launch(bed.make_request("r-1", 2))
    other = await bed.reopen().launch(bed.make_request("r-1", 2))
    for result in (again, other):
        assert {each.provider_id for each in result.instances} == {each.provider_id for each in first.instances}
    assert bed.count_alive() == 2


async def other_requests_buy_more(bed: ProviderBed) -> None:
    await bed.provider.launch(bed.make_request("r-1"))
    await bed.provider.launch(bed.make_request("r-2"))
    assert {each.request_id for each in await bed.provider.list_instances()} == {"r-1", "r-2"}
    assert bed.count_alive() == 2


async def the_same_request_at_the_same_time_buys_once(bed: ProviderBed) -> None:
    other = bed.reopen()
    await asyncio.gather(*(each.launch(bed.make_request("r-1", 2)) for each in (bed.provider, other)))
    await bed.provider.launch(bed.make_request("r-1", 2))
    assert bed.count_alive() == 2


async def a_request_whose_instances_were_terminated_buys_nothing(bed: ProviderBed) -> None:
    result = await bed.provider.launch(bed.make_request("r-1", 2))
    await bed.provider.terminate([each.provider_id for each in result.instances])
    await bed.provider.launch(bed.make_request("r-1", 2))
    assert bed.count_alive() == 0


async def a_launch_whose_answer_was_lost_is_found_by_the_next_call(bed: ProviderBed) -> None:
    bed.lose_answer()
    lost = await bed.provider.launch(bed.make_request("r-1", 2))
    assert lost.error is None or lost.error.is_retryable
    again = await bed.reopen().launch(bed.make_request("r-1", 2))
    assert again.error is None
    assert len(again.instances) == 2
    assert bed.count_alive() == 2


async def an_atomic_launch_that_does_not_fit_buys_nothing(bed: ProviderBed) -> None:
    bed.set_capacity(2)
    result = await bed.provider.launch(bed.make_request("r-1", 3, atomic=True))
    assert result.error is not None
    assert result.error.kind is LaunchErrorKind.NO_CAPACITY
    assert result.instances == ()
    assert [each for each in await bed.provider.list_instances() if each.state is InstanceState.RUNNING] == []
    assert bed.count_alive() == 0


async def an_atomic_launch_that_fits_buys_all(bed: ProviderBed) -> None:
    bed.set_capacity(3)
    result = await bed.provider.launch(bed.make_request("r-1", 3, atomic=True))
    assert result.error is None
    assert len(result.instances) == bed.count_alive() == 3


async def a_launch_that_is_not_atomic_says_what_is_missing(bed: ProviderBed) -> None:
    bed.set_capacity(2)
    result = await bed.provider.launch(bed.make_request("r-1", 3))
    assert result.error is not None
    assert result.error.kind is LaunchErrorKind.NO_CAPACITY
    assert len(result.instances) == bed.count_alive()
    assert bed.count_alive() <= 2


async def another_process_lists_everything(bed: ProviderBed) -> None:
    result = await bed.provider.launch(bed.make_request("r-1", 2))
    found = {each.provider_id: each for each in await bed.reopen().list_instances()}
    assert set(found) == {each.provider_id for each in result.instances}
    for each in result.instances:
        listed = found[each.provider_id]
        assert (listed.request_id, listed.pool, listed.zone) == (each.request_id, each.pool, each.zone)
        assert (listed.instance_type, listed.capacity_type) == (each.instance_type, each.capacity_type)


async def a_termination_is_idempotent_and_ends_only_what_it_names(bed: ProviderBed) -> None:
    first, second = (await bed.provider.launch(bed.make_request("r-1", 2))).instances
    for _ in range(2):
        await bed.provider.terminate([first.provider_id])
    await bed.provider.terminate([])
    await bed.provider.terminate(["nonsense", first.provider_id])
    assert not bed.is_alive(first.provider_id)
    assert bed.is_alive(second.provider_id)
    listed = {each.provider_id: each.state for each in await bed.provider.list_instances()}
    assert listed.get(first.provider_id, InstanceState.GONE) in {InstanceState.REMOVING, InstanceState.GONE}


async def instances_of_other_owners_are_neither_listed_nor_terminated(bed: ProviderBed) -> None:
    foreign = await bed.add_foreign()
    assert await bed.provider.list_instances() == ()
    await bed.provider.terminate([foreign])
    assert bed.is_alive(foreign)


async def every_error_has_its_kind_and_buys_nothing(bed: ProviderBed) -> None:
    for number, kind in enumerate(bed.kinds):
        bed.fail_next(kind)
        result = await bed.provider.launch(bed.make_request(f"r-{number}"))
        assert result.error is not None, kind
        assert result.error.kind is kind, result.error
        assert str(result.error)
        assert result.instances == ()
    assert bed.count_alive() == 0


async def a_retryable_error_is_followed_by_success(bed: ProviderBed) -> None:
    for number, kind in enumerate(kind for kind in bed.kinds if kind in {"throttled", "transient"}):
        bed.fail_next(kind)
        request = bed.make_request(f"r-{number}")
        failed = await bed.provider.launch(request)
        assert failed.error is not None
        assert failed.error.is_retryable
        assert (await bed.provider.launch(request)).error is None
        assert bed.count_alive() == number + 1


async def a_failed_list_raises_and_never_looks_empty(bed: ProviderBed) -> None:
    await bed.provider.launch(bed.make_request("r-1"))
    bed.fail_next(LaunchErrorKind.THROTTLED)
    with pytest.raises(LaunchError) as caught:
        await bed.provider.list_instances()
    assert caught.value.kind is LaunchErrorKind.THROTTLED
    assert len(await bed.provider.list_instances()) == 1


async def traits_are_stated(bed: ProviderBed) -> None:
    assert bed.provider.name
    assert isinstance(bed.provider.traits.gangs, GangSupport)
    assert bed.provider.traits.settle_s >= 0
    assert await bed.provider.list_notices() == ()


CONTRACT = [
    a_launch_returns_what_was_asked_for,
    the_same_request_buys_once,
    other_requests_buy_more,
    the_same_request_at_the_same_time_buys_once,
    a_request_whose_instances_were_terminated_buys_nothing,
    a_launch_whose_answer_was_lost_is_found_by_the_next_call,
    an_atomic_launch_that_does_not_fit_buys_nothing,
    an_atomic_launch_that_fits_buys_all,
    a_launch_that_is_not_atomic_says_what_is_missing,
    another_process_lists_everything,
    a_termination_is_idempotent_and_ends_only_what_it_names,
    instances_of_other_owners_are_neither_listed_nor_terminated,
    every_error_has_its_kind_and_buys_nothing,
    a_retryable_error_is_followed_by_success,
    a_failed_list_raises_and_never_looks_empty,
    traits_are_stated,
]
