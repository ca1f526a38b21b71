"""Counting writes from the API server's own metrics."""

from __future__ import annotations

from collections import Counter

from kgwe.bench.cluster.measure import apiwrites


def metric(verb: str, resource: str, value: int, *, subresource: str = "", code: int = 200) -> str:
    return (
        f'apiserver_request_total{{code="{code}",component="apiserver",dry_run="",group="",resource="{resource}",'
        f'scope="resource",subresource="{subresource}",verb="{verb}",version="v1"}} {value}\n'
    )


def test_writes_are_summed_by_resource_whatever_their_verb_and_outcome():
    text = (
        "# TYPE apiserver_request_total counter\n"
        + metric("POST", "pods", 3, code=201)
        + metric("POST", "pods", 1, code=409)
        + metric("DELETE", "pods", 1)
        + metric("APPLY", "gpuworkloads", 2)
        + metric("POST", "pods", 4, subresource="binding", code=201)
    )
    assert apiwrites.count_writes(text) == {"pods": 5, "gpuworkloads": 2, "pods/binding": 4}


def test_reads_leases_node_heartbeats_and_access_reviews_are_left_out():
    text = (
        metric("GET", "pods", 9)
        + metric("WATCH", "pods", 9)
        + metric("PUT", "leases", 9)
        + metric("PATCH", "nodes", 9, subresource="status")
        + metric("POST", "subjectaccessreviews", 9)
        + 'apiserver_request_total{code="200",resource="",verb="GET"} 5\n'
        + 'apiserver_request_total_other{resource="pods",verb="POST"} 5\n'
    )
    assert not apiwrites.count_writes(text)


def test_large_counters_are_read_in_exponent_form():
    assert apiwrites.count_writes('apiserver_request_total{resource="pods",verb="POST"} 1.5e+06\n') == {
        "pods": 1_500_000
    }


def test_writes_per_pod_are_differences_and_the_most_frequent_come_first():
    before, after = Counter(pods=10, jobs=5), Counter(pods=30, jobs=5, events=50)
    assert list(apiwrites.per_pod(before, after, 10).items()) == [("events", 5.0), ("pods", 2.0)]
