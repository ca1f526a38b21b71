"""The Prometheus source: a few bulk queries for the whole cluster, never one per pod."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from kgwe import errors
from kgwe.metrics.fields import Field, Rejected, merge_rejected, reject_bad_field
from kgwe.metrics.grid import WINDOW_FIELDS, make_usage_window, plan_steps
from kgwe.metrics.prometheus_api import PrometheusApi, PrometheusSettings, RangeResult, TooMuch, make_client
from kgwe.metrics.promql import build_queries
from kgwe.metrics.series import NODE_LABELS, Dialect, identify_device, uses_exported_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx2
    from numpy.typing import NDArray

    from kgwe.metrics.grid import Steps
    from kgwe.metrics.prometheus_api import Series
    from kgwe.model.usage.window import Device, DeviceKey, Floats, PodKey, UsageWindow

log = structlog.get_logger(__name__)

_PARALLEL: Final = 3
_STALE_STEPS: Final = 3


class PrometheusSource:
    """Usage that Prometheus has collected. After an outage everything is unknown and `problem` says why."""

    def __init__(
        self,
        settings: PrometheusSettings,
        client: httpx2.AsyncClient | None = None,
        *,
        is_without_gpus: Callable[[PodKey], bool] = lambda _: False,
    ) -> None:
        """`is_without_gpus`: whether a pod of the cluster asked for no GPU. Such a pod is the exporter itself, whose
        name Prometheus attaches to series that name no pod.
        """
        self._settings = settings
        self._is_without_gpus = is_without_gpus
        self._client = client or make_client(settings)
        self._api = PrometheusApi(settings, self._client)
        self._dialect = Dialect(settings.node_labels or NODE_LABELS)
        self._problem: str | None = "Prometheus has not been asked yet"
        self._build_queries(1.0)  # a clear error now instead of later

    async def read_window(self, end_s: float, length_s: float, step_s: float) -> UsageWindow:
        """Return usage in a window; see `MetricSource`."""
        steps = plan_steps(end_s, length_s, step_s)
        queries = self._build_queries(steps.step_s)
        slots = asyncio.Semaphore(_PARALLEL)
        results = await asyncio.gather(*(self._ask(query, steps, slots) for query in queries.values()))
        problems = [each for each in results if isinstance(each, str)]
        found = {field: result for field, result in zip(queries, results, strict=True) if not isinstance(result, str)}
        window = await asyncio.to_thread(self._make_window, found, steps)
        self._problem = problems[0] if problems else self._find_problem(window)
        if problems:
            log.warning("usage_not_read", error=problems[0], failed_queries=len(problems))
        return window

    def problem(self) -> str | None:
        """Return why the last window is incomplete; None if it is complete."""
        return self._problem

    async def close(self) -> None:
        """Close connections."""
        await self._client.aclose()

    def _build_queries(self, step_s: float) -> dict[Field, str]:
        chosen = self._settings
        return build_queries(chosen.range_s or step_s, matchers=chosen.matchers, node_labels=chosen.node_labels)

    async def _ask(self, query: str, steps: Steps, slots: asyncio.Semaphore) -> list[Series] | str:
        """Return the series of a query, or why they are unknown."""
        async with slots:
            try:
                return await self._ask_range(query, steps, 1, steps.count)
            except errors.KgweError as exc:
                return str(exc)

    async def _ask_range(self, query: str, steps: Steps, first: int, last: int) -> list[Series]:
        """Return the series of the steps `first` to `last`, in halves if the server refuses so much at once."""
        start_s, step_s = steps.start_s, steps.step_s
        try:
            result = await self._api.query_range(query, start_s + first * step_s, start_s + last * step_s, step_s)
        except TooMuch:
            if first == last:
                raise
            middle = (first + last) // 2
            return [
                *await self._ask_range(query, steps, first, middle),
                *await self._ask_range(query, steps, middle + 1, last),
            ]
        return _require_complete(result)

    def _make_window(self, found: dict[Field, list[Series]], steps: Steps) -> UsageWindow:
        if not self._dialect.exported:
            exported = any(uses_exported_labels(each.metric) for series in found.values() for each in series)
            self._dialect = Dialect(self._dialect.node_labels, exported)
        rows: dict[DeviceKey, int] = {}
        devices: list[Device] = []
        numbered: dict[Field, list[int | None]] = {}
        for field, series in found.items():
            numbered[field] = [self._find_row(each, rows, devices) for each in series]
        counts: list[Rejected] = []
        fields = {field: np.full((len(devices), steps.count), np.nan, dtype=np.float32) for field in WINDOW_FIELDS}
        for field, series in found.items():
            fields[field], rejected = _fill(field, series, numbered[field], steps, len(devices))
            counts.append(rejected)
        return make_usage_window(devices, fields, steps, merge_rejected(*counts))

    def _find_row(self, series: Series, rows: dict[DeviceKey, int], devices: list[Device]) -> int | None:
        device = identify_device(series.metric, self._dialect)
        if device is None:
            return None
        if device.key.pod is not None and self._is_without_gpus(device.key.pod):
            device = replace(device, key=device.key._replace(pod=None, container=""))
        row = rows.get(device.key)
        if row is None:
            row = rows[device.key] = len(devices)
            devices.append(device)
        return row

    def _find_problem(self, window: UsageWindow) -> str | None:
        if not window.devices:
            return (
                f"Prometheus at {self._api.url} has no GPU metrics in the window;"
                " check that it scrapes dcgm-exporter or KGWE's agents"
            )
        known = np.flatnonzero(~np.isnan(window.memory_used_mib).all(axis=0) | ~np.isnan(window.activity).all(axis=0))
        missing = window.steps - 1 - int(known[-1]) if known.size else window.steps
        if missing >= min(_STALE_STEPS, window.steps):
            return f"the newest GPU metrics in Prometheus are {missing * window.step_s:.0f} s old"
        return None


def _require_complete(result: RangeResult) -> list[Series]:
    if result.warnings:
        raise errors.Transient(f"Prometheus returned a part of the data: {result.warnings[0]}")
    return result.series


def _fill(
    field: Field, series: Sequence[Series], numbers: Sequence[int | None], steps: Steps, row_count: int
) -> tuple[Floats, Rejected]:
    """Return the values of a field by row and step, and what was skipped."""
    times: list[float] = []
    texts: list[str] = []
    rows: list[int] = []
    begins: list[int] = []
    """Numbers of the samples that begin a series."""
    malformed = 0
    for each, row in zip(series, numbers, strict=True):
        if row is None:
            malformed += len(each.values)
            continue
        begins.append(len(times))
        rows.extend([row] * len(each.values))
        for at_s, text in each.values:
            times.append(at_s)
            texts.append(text)
    values, readable = _parse_numbers(texts)
    times_s, row_numbers = np.array(times, dtype=np.float64), np.array(rows, dtype=np.int64)
    columns = np.rint((times_s - steps.start_s) / steps.step_s).astype(np.int64) - 1
    inside = _find_ordered(times_s, begins) & (columns >= 0) & (columns < steps.count)
    early, inside = int((~inside).sum()), inside & readable
    kept, first = np.unique((row_numbers * steps.count + columns)[inside], return_index=True)
    flat = np.full(row_count * steps.count, np.nan, dtype=np.float32)
    present = np.zeros(flat.size, dtype=np.bool_)
    flat[kept] = values[inside][first]
    present[kept] = True
    found, there = flat.reshape(row_count, steps.count), present.reshape(row_count, steps.count)
    counts = {
        "malformed": malformed + int((~readable).sum()),
        "out_of_order": early,
        "duplicate": int(inside.sum()) - kept.size,
    }
    return found, merge_rejected({k: v for k, v in counts.items() if v}, reject_bad_field(field, found, there))


def _find_ordered(times_s: NDArray[np.float64], begins: list[int]) -> NDArray[np.bool_]:
    """Return which samples are not earlier than the one before them in their series."""
    ordered = np.ones(times_s.size, dtype=np.bool_)
    ordered[1:] = np.diff(times_s) >= 0
    ordered[[begin for begin in begins if begin < times_s.size]] = True
    return ordered


def _parse_numbers(texts: list[str]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the numbers, and which texts are numbers."""
    readable = np.ones(len(texts), dtype=np.bool_)
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        parsed = [_parse_number(text) for text in texts]
        readable[[index for index, number in enumerate(parsed) if number is None]] = False
        numbers = [0.0 if number is None else number for number in parsed]
    with np.errstate(over="ignore"):  # too large for 32 bits is infinite, and out of range
        return np.array(numbers, dtype=np.float64).astype(np.float32), readable


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
