"""Pods that the exporter does not name come from the kubelet."""

from __future__ import annotations

import numpy as np

from kgwe.metrics.exposition import ExpositionReader
from kgwe.metrics.fields import Field
from kgwe.metrics.holdings import Holding, attach_holders, index_holdings
from kgwe.model.usage.window import PodKey

A, B = PodKey("team", "a"), PodKey("team", "b")
CARD = 'gpu_uuid="GPU-1",node="n1",model="NVIDIA L4"'


def attach(body: str, *holdings: Holding) -> dict[tuple[str, PodKey | None], float]:
    """(instance, pod) -> activity."""
    scrape = attach_holders(ExpositionReader().read(body.encode()), index_holdings(holdings))
    assert scrape.values.shape == (len(scrape.devices), len(Field))
    return {
        (device.key.instance, device.key.pod): round(float(scrape.values[row, Field.ENGINE]), 4)
        for row, device in enumerate(scrape.devices)
    }


def test_a_slice_gets_the_pod_that_holds_it():
    body = f'kgwe_mig_instance_utilization_percent{{{CARD},profile="1g.5gb",gpu_instance_id="7"}} 10\n'
    assert attach(body, Holding("n1", "GPU-1", "7", A)) == {("7", A): 0.1}
    assert attach(body, Holding("n1", "GPU-1", "8", A), Holding("n2", "GPU-1", "7", B)) == {("7", None): 0.1}


def test_each_pod_on_a_shared_gpu_gets_a_row():
    body = f"kgwe_gpu_engine_active_percent{{{CARD}}} 50\n"
    holdings = (Holding("n1", "GPU-1", "", A), Holding("n1", "GPU-1", "", B))
    assert attach(body, *holdings) == {("", A): 0.5, ("", B): 0.5}


def test_what_the_agent_measured_for_a_pod_stays():
    body = (
        f"kgwe_gpu_engine_active_percent{{{CARD}}} 50\n"
        f'kgwe_gpu_pod_share_percent{{{CARD},namespace="team",pod="a"}} 20\n'
    )
    holdings = (Holding("n1", "GPU-1", "", A), Holding("n1", "GPU-1", "", B))
    assert attach(body, *holdings) == {("", None): 0.5, ("", A): 0.2, ("", B): 0.5}


def test_nothing_is_attached_to_an_empty_scrape():
    scrape = attach_holders(ExpositionReader().read(b""), index_holdings([Holding("n1", "GPU-1", "", A)]))
    assert scrape.devices == ()
    assert np.isnan(scrape.values).all()
