"""Azure through azure-mgmt-compute against a stand-in of the documented REST shapes. Never run against Azure itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.contracts.provider import CONTRACT
from tests.support.fakes.azure_bed import AzureServer, ScaleSetBed, refusal
from tests.support.fakes.rest_server import RestFault

from kgwe.cloud.azure.client import ERRORS, AzureScaleSet, AzureSettings
from kgwe.cloud.azure.marks import Mark, read_marks, read_ranges, write_ranges
from kgwe.cloud.azure.scale_sets import AzureScaleSets
from kgwe.cloud.provider import LaunchError, LaunchErrorKind


@pytest.fixture(scope="module")
def server():
    found = AzureServer()
    yield found
    found.stop()


@pytest.mark.parametrize("clause", CONTRACT, ids=lambda clause: clause.__name__)
async def test_contract(clause, server):
    await clause(ScaleSetBed(server))


async def test_vms_that_were_there_before_are_never_counted_for_a_request(server):
    bed = ScaleSetBed(server)
    foreign = await bed.add_foreign()
    there = server.cloud.machines[bed.name][foreign.rpartition("/")[2]]
    there["properties"]["timeCreated"] = "2020-01-01T00:00:00Z"
    result = await bed.provider.launch(bed.make_request("r-1", 2))
    assert result.error is None
    assert foreign not in {each.provider_id for each in result.instances}
    assert len(server.cloud.machines[bed.name]) == 3
    await bed.provider.terminate([foreign])
    assert bed.is_alive(foreign)


async def test_tags_of_others_stay(server):
    bed = ScaleSetBed(server)
    server.cloud.sets[bed.name]["tags"] = {"owner": "ml"}
    await bed.provider.launch(bed.make_request("r-1"))
    assert server.cloud.sets[bed.name]["tags"]["owner"] == "ml"


async def test_a_failed_raise_leaves_no_capacity_that_the_set_goes_on_buying(server):
    bed = ScaleSetBed(server)
    bed.set_capacity(1)
    result = await bed.provider.launch(bed.make_request("r-1", 3))
    assert len(result.instances) == 1
    assert server.cloud.sets[bed.name]["sku"]["capacity"] == 1


async def test_the_limit_of_a_scale_set_is_kept_and_an_unknown_set_is_a_bad_template(server):
    bed = ScaleSetBed(server)
    bed.scale_sets["h100"] = AzureScaleSet(name=bed.name, limit=1)
    for template, kind in ((bed.name, LaunchErrorKind.LIMIT), ("other", LaunchErrorKind.BAD_TEMPLATE)):
        bed.name = template
        result = await bed.provider.launch(bed.make_request("r-1", 2))
        assert result.error is not None
        assert result.error.kind is kind


@pytest.mark.parametrize("code", sorted(ERRORS))
async def test_every_code_of_the_table_keeps_its_kind(code, server):
    bed = ScaleSetBed(server)
    answer = refusal(409, code)
    answer.headers["Retry-After"] = "3"
    server.rest.faults.append(RestFault(answer, only_writes=False))
    with pytest.raises(LaunchError) as caught:
        await bed.provider.list_instances()
    assert (caught.value.kind, caught.value.retry_after_s) == (ERRORS[code], 3.0)


async def test_no_answer_is_transient():
    settings = AzureSettings(
        cluster="c",
        subscription="s",
        resource_group="g",
        scale_sets={"p": AzureScaleSet(name="x")},
        endpoint="http://127.0.0.1:9",
    )
    provider = AzureScaleSets(settings)
    with pytest.raises(LaunchError) as caught:
        await provider.list_instances()
    assert caught.value.kind is LaunchErrorKind.TRANSIENT
    await provider.close()


@given(st.frozensets(st.integers(0, 500)))
def test_ranges_come_back_as_they_were(numbers):
    assert read_ranges(write_ranges(numbers)) == numbers


def test_marks_of_other_clusters_and_nonsense_are_left_out():
    tags = {"kgwe-request-a-r": Mark(is_done=True, began_at=5, machines=frozenset({1, 2})).write()}
    tags |= {"kgwe-request-b-r": "done;5;1", "kgwe-request-a-x": "nonsense", "owner": "done;5;1"}
    assert read_marks("a", tags) == {"r": Mark(is_done=True, began_at=5, machines=frozenset({1, 2}))}
    assert read_marks("a", None) == {}
