"""Which source is opened, by the settings."""

from __future__ import annotations

from kgwe.metrics.embedded import EmbeddedSource
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.metrics.settings import SourceHooks, SourceSettings, open_source


async def test_without_settings_kgwe_scrapes_the_exporters_of_the_cluster():
    hooks = SourceHooks(list_exporters=lambda: [("n1", "http://127.0.0.1:1")])
    source = open_source(SourceSettings(), hooks)
    assert isinstance(source, EmbeddedSource)
    await source.scrape_round()
    assert list(source.list_failures()) == ["http://127.0.0.1:1/metrics"]
    await source.close()


async def test_exporters_by_url_are_scraped_instead_of_those_of_the_cluster():
    hooks = SourceHooks(list_exporters=lambda: [("n1", "http://127.0.0.1:3")])
    source = open_source(SourceSettings(exporters=("http://127.0.0.1:1/metrics", "http://127.0.0.1:2")), hooks)
    assert isinstance(source, EmbeddedSource)
    await source.scrape_round()
    assert source.count_targets() == 2
    await source.close()


async def test_a_cluster_without_exporters_is_a_problem():
    source = open_source(SourceSettings())
    assert isinstance(source, EmbeddedSource)
    await source.scrape_round()
    assert source.problem() == "there is no exporter to scrape"
    await source.close()


async def test_a_url_of_prometheus_chooses_prometheus():
    source = open_source(SourceSettings(prometheus=PrometheusSettings("https://prometheus:9090/api")))
    assert isinstance(source, PrometheusSource)
    await source.close()
