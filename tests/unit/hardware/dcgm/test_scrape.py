"""Activity is read from the text that a dcgm-exporter, ours included, renders."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kgwe import errors
from kgwe.hardware.dcgm import metrics, scrape
from kgwe.local.fleet import gpunodes, meter, models
from kgwe.local.fleet.device_assignment import Holder
from kgwe.model.gpu import catalog
from kgwe.model.simfleet import inventory, sensors, usage
from kgwe.model.telemetry.sample import Activity
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

A100 = catalog.CATALOGUE["A100-SXM4-80GB"]
BUSY = usage.Usage(util=0.9, memory=0.5, tensor=0.5, dram=0.4)


def rows() -> list[metrics.Row]:
    read = sensors.read_sensors(A100, BUSY, links=12)
    card = metrics.Reading(A100, read, metrics.Counters(), metrics.Faults(), has_nvlink=True)
    whole = metrics.Device(0, "GPU-a", "b", A100.product, 'odd "name" }', "570")
    part = metrics.Device(1, "GPU-b", "b", A100.product, "n", "570", "3g.40gb", 2)
    owner = metrics.Owner("team", "pod-1", "main")
    return [
        (metrics.label_block(whole), metrics.read_gpu_values(card, BUSY)),
        (metrics.label_block(part, owner), metrics.read_instance_values(card, BUSY, 40_000)),
    ]


def test_cards_and_instances_are_told_apart():
    found = scrape.MetricsReader().read(metrics.render_metrics(rows()).decode())
    assert found == {
        ("GPU-a", None): Activity(0.9, 0.855, 0.5, 0.4),
        ("GPU-b", 2): Activity(0.9, 0.855, 0.5, 0.4),
    }


def test_a_simulated_node_is_read_back_as_its_meter_shows_it():
    node = next(node for node in inventory.expand_fleet(models.load("mixed"), 64) if node.pool.name == "a100-mig")
    obj = gpunodes.gpu_node(node, "uid")
    told = meter.NodeMeter(obj, 1000.0)
    instance = obj.status.gpus[0].mig.instances[0]
    holder = Holder(metrics.Owner("team", "pod", "main"), usage.parse_profile("constant(util=0.8, noise=0)"), 0.0, 1)
    told.set_holders({(0, instance.instanceID): holder})
    found = scrape.MetricsReader().read(metrics.render_metrics(told.rows(1000.0)).decode())
    expected = {
        (card.uuid, part.instanceID if part else None)
        for card in obj.status.gpus
        for part in (card.mig.instances or (None,))
    }
    assert found.keys() == expected
    busy = found[obj.status.gpus[0].uuid, instance.instanceID]
    assert busy.engine == pytest.approx(0.8)
    assert sorted(activity.engine or 0 for activity in found.values())[:-1] == [0] * (len(found) - 1)


@pytest.mark.parametrize(
    "line",
    [
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a"} nan',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a"} 9223372036854775794',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a"} -1',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a"} many',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a"}',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.5',
        'DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-a",GPU_I_ID="x"} 0.5',
        'DCGM_FI_PROF_PIPE_FP64_ACTIVE{UUID="GPU-a"} 0.5',
        'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a"} 50',
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE 0.5",
    ],
)
def test_what_is_not_a_measurement_is_unknown(line):
    assert scrape.MetricsReader().read(f"{line}\n") == {}


def test_a_field_that_is_not_there_is_unknown():
    text = 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a"} 0.25\n'
    assert scrape.MetricsReader().read(text) == {("GPU-a", None): Activity(tensor=0.25)}


def test_what_is_remembered_is_bounded():
    reader = scrape.MetricsReader()
    for i in range(3):
        text = "".join(f'DCGM_FI_PROF_SM_ACTIVE{{UUID="GPU-a",pod="p{i}-{j}"}} 0.5\n' for j in range(3000))
        assert reader.read(text) == {("GPU-a", None): Activity(sm=0.5)}
    assert len(reader._units) <= 4096


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes, *, slow: bool = False) -> AsyncIterator[str]:
    async def app(_request: http.Request) -> http.Reply:
        if slow:
            await asyncio.sleep(1)
        return http.Reply(status, body)

    async with http.serving(app, http.Address("127.0.0.1", 0)) as port:
        yield f"http://127.0.0.1:{port}/metrics"


async def test_an_exporter_is_scraped():
    async with answering(200, metrics.render_metrics(rows())) as url, scrape.DcgmScraper(url) as scraper:
        assert (await scraper.read_activities())["GPU-b", 2].tensor == 0.5


async def test_an_exporter_that_fails_or_floods_is_unknown_and_says_why():
    async with answering(503, b"starting") as url, scrape.DcgmScraper(url) as scraper:
        with pytest.raises(errors.Transient, match="503"):
            await scraper.read_activities()
    async with answering(200, b"x" * 5000) as url, scrape.DcgmScraper(url, max_bytes=1000) as scraper:
        with pytest.raises(errors.Transient, match="more than 1000 bytes"):
            await scraper.read_activities()
    async with scrape.DcgmScraper("http://127.0.0.1:9/metrics") as scraper:
        with pytest.raises(errors.Transient, match="does not respond"):
            await scraper.read_activities()


async def test_an_exporter_that_hangs_is_given_up_on():
    async with answering(200, b"", slow=True) as url, scrape.DcgmScraper(url, timeout_s=0.1) as scraper:
        with pytest.raises(errors.Transient):
            await scraper.read_activities()
