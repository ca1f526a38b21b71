"""The agent's GPU metrics over HTTP, in the Prometheus format.

    /metrics    GPUs, MIG instances, links, and usage by pod
    /health     200 while samples come in, else 503 with the reason; also as /readyz
    /healthz    always 200: a broken driver is no reason to restart the agent

Text is rendered at a scrape, at most once per sample; labels are built when the machine changes. Old samples are not
shown: with a hanging driver gauges disappear instead of freezing.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from kgwe.apps.agent.metrics import families, sampler
from kgwe.hardware.dcgm.metrics import CONTENT_TYPE
from kgwe.model.gpu.driver_data import Throttle
from kgwe.model.telemetry.attribution import WHOLE
from kgwe.telemetry.http import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kgwe.apps.agent.metrics.families import Family, Number
    from kgwe.model.gpu.driver_data import Instance, Machine
    from kgwe.model.telemetry.sample import GpuSample, Sample, Traffic
    from kgwe.telemetry.http import Request

_USAGE: Final = b"not found: try /metrics or /health\n"
_GBIT: Final = 8e-9
_PERCENT: Final = WHOLE // 100
_THROTTLES: Final = tuple((reason, (reason.name or "").lower()) for reason in Throttle if reason)

#: (family, labels with a closing space, value)
Line = tuple["Family", str, "Number | str | None"]


def render_labels(*pairs: tuple[str, str]) -> str:
    """Return `{name="value",…} `, the text between a metric name and its value."""
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return "{" + inside + "} " if inside else " "


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exporter:
    """Holds the data of /metrics. The agent's event loop sets it; scrapes render it."""

    def __init__(self, node: str, *, stale_after_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._machine: Machine | None = None
        self._sample: Sample | None = None
        self._health: Mapping[str, bool | None] = {}
        #: a GPU or MIG instance -> its labels without the closing bracket
        self._parts: dict[str | Instance, str] = {}
        self._fixed = ""
        self._churn = _Churn()
        self._made: tuple[Sample | None, bytes] | None = None

    def set_machine(self, machine: Machine | None) -> None:
        """Set the GPUs and their MIG layouts; None if they are no longer known."""
        if machine == self._machine:
            return
        self._machine = machine
        self._parts = {}
        self._fixed = _format_lines(self._list_fixed_lines(machine)) if machine is not None else ""
        self._made = None

    def set_health(self, healthy: Mapping[str, bool | None]) -> None:
        """Set uuid -> whether the GPU is in service; None or absent if unknown."""
        self._health = dict(healthy)
        self._made = None

    def set_sample(self, sample: Sample) -> None:
        """Set the newest sample; its `at_s` is of this exporter's clock."""
        self._churn.see(sample)
        self._sample = sample
        self._made = None

    def problem(self) -> str | None:
        """Return why the data is not reliable; None if it is."""
        if self._sample is None:
            return "there is no sample yet"
        age = self._clock() - self._sample.at_s
        return f"the newest sample is {age:.0f} s old" if age > self._stale_after_s else None

    def render(self) -> bytes:
        """Return all metrics as text."""
        shown = None if self.problem() else self._sample
        if self._made is None or self._made[0] is not shown:
            self._made = (shown, (self._fixed + _format_lines(self._lines(shown))).encode())
        return self._made[1] + _format_lines(self._age()).encode()

    # --- lines ------------------------------------------------------------------------------------------

    def _list_fixed_lines(self, machine: Machine) -> Iterator[Line]:
        """Return the lines that change only with the machine."""
        node = ("node", self._node)
        for model, count in sorted(Counter(device.product for device in machine.devices).items()):
            yield families.GPU_COUNT, render_labels(node, ("model", model)), count
        for device in machine.devices:
            card = (("gpu_uuid", device.uuid), node, ("model", device.product))
            for profile, count in sorted(Counter(each.profile for each in device.mig.instances).items()):
                yield families.MIG_COUNT, render_labels(*card, ("profile", profile)), count
            for state, is_up in (("up", True), ("down", False)):
                links = sum(link.is_up is is_up for link in device.links)
                if device.links and any(link.is_up is not None for link in device.links):
                    yield families.NVLINK_LINKS, render_labels(*card, ("state", state)), links
        for (one, other), rate in sampler.pair_gbit_per_s(machine).items():
            yield families.NVLINK_CAPACITY, render_labels(("gpu_uuid_1", one), ("gpu_uuid_2", other), node), rate

    def _lines(self, sample: Sample | None) -> Iterator[Line]:
        cards = [(self._part(card), card) for card in (sample.gpus if sample else ())]
        for part, card in cards:
            if (healthy := self._health.get(card.device.uuid)) is not None:
                yield families.HEALTH, part + "} ", int(healthy)
        for family, value in families.CARD:
            for part, card in cards:
                yield family, part + "} ", value(card)
        for part, card in cards:
            yield from _card_lines(part, self._node, card)
        instances = [
            (self._instance_part(part, each.instance), each) for part, card in cards for each in card.instances
        ]
        for family, figure in families.INSTANCE:
            for part, each in instances:
                yield family, part + "} ", figure(each)
        yield from self._churn.lines(self._node)

    def _age(self) -> Iterator[Line]:
        if self._sample is not None:
            yield families.SAMPLE_AGE, render_labels(("node", self._node)), round(self._clock() - self._sample.at_s, 3)

    def _part(self, card: GpuSample) -> str:
        uuid = card.device.uuid
        if uuid not in self._parts:
            pairs = (("gpu_uuid", uuid), ("node", self._node), ("model", card.device.product))
            self._parts[uuid] = render_labels(*pairs).rstrip("} ")
        return self._parts[uuid]

    def _instance_part(self, part: str, instance: Instance) -> str:
        # The key is the whole instance: its id may be reused, and a sample may be older than the machine.
        if instance not in self._parts:
            own = (
                ("profile", instance.profile),
                ("mig_uuid", instance.uuid),
                ("gpu_instance_id", str(instance.instance_id)),
            )
            self._parts[instance] = part + _open_labels(*own)
        return self._parts[instance]


def _open_labels(*pairs: tuple[str, str]) -> str:
    """Return labels without the closing bracket, for more labels."""
    return "".join(f',{name}="{_escape(value)}"' for name, value in pairs)


def _card_lines(part: str, node: str, card: GpuSample) -> Iterator[Line]:
    reading, shares = card.reading, card.shares
    if reading.throttle is not None:
        for reason, name in _THROTTLES:
            yield families.THROTTLED, f'{part},reason="{name}"}} ', int(bool(reading.throttle & reason))
    yield families.ECC, part + ',kind="corrected"} ', reading.faults.ecc_corrected
    yield families.ECC, part + ',kind="uncorrected"} ', reading.faults.ecc_uncorrected
    yield families.UNMEASURED, part + "} ", _format_percent(shares.unknown)
    if shares.unknown < WHOLE:
        yield families.IDLE, part + "} ", _format_percent(shares.idle)
        yield families.UNATTRIBUTED, part + "} ", _format_percent(shares.other)
        for pod, parts in shares.pods:
            yield families.POD_SHARE, part + _open_labels(*_pod(pod)) + "} ", _format_percent(parts)
    yield from _memory_lines(part, card)
    yield from _traffic_lines(part, node, card)


def _memory_lines(part: str, card: GpuSample) -> Iterator[Line]:
    memories = [each.memory for each in card.instances] if card.instances else [card.memory]
    pods: dict[str, int] = {}
    for memory in memories:
        for pod, mib in memory.pods if memory else ():
            pods[pod] = pods.get(pod, 0) + mib
    for pod, mib in sorted(pods.items()):
        yield families.POD_MEMORY, part + _open_labels(*_pod(pod)) + "} ", mib * families.MIB
    known = [memory for memory in memories if memory is not None]
    if known and len(known) == len(memories):
        yield families.UNATTRIBUTED_MEMORY, part + "} ", sum(memory.other for memory in known) * families.MIB


def _traffic_lines(part: str, node: str, card: GpuSample) -> Iterator[Line]:
    reading = card.reading
    yield from _list_directions(families.NVLINK_TRAFFIC, part, card.nvlink)
    for peer, traffic in card.peers.items():
        pair = render_labels(("gpu_uuid_1", card.device.uuid), ("gpu_uuid_2", peer), ("node", node))
        yield families.NVLINK_PAIR_TRAFFIC, pair, _gbit(traffic.tx)
    for direction, counters in (("tx", reading.nvlink_tx_bytes), ("rx", reading.nvlink_rx_bytes)):
        if counters:
            total = sum(value for _, value in counters)
            yield families.NVLINK_BYTES, f'{part},direction="{direction}"}} ', total
    for kind in ("replays", "recoveries", "crc"):
        counts = [getattr(link, kind) for link in reading.faults.links]
        known = [count for count in counts if count is not None]
        if known:
            yield families.NVLINK_ERRORS, f'{part},kind="{kind}"}} ', sum(known)
    for direction, rate in (("tx", reading.pcie_tx_bytes_per_s), ("rx", reading.pcie_rx_bytes_per_s)):
        yield families.PCIE_TRAFFIC, f'{part},direction="{direction}"}} ', _gbit(rate)


def _list_directions(family: Family, part: str, traffic: Traffic) -> Iterator[Line]:
    yield family, part + ',direction="tx"} ', _gbit(traffic.tx)
    yield family, part + ',direction="rx"} ', _gbit(traffic.rx)


def _gbit(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s * _GBIT


def _pod(key: str) -> tuple[tuple[str, str], ...]:
    namespace, slash, name = key.partition("/")
    return (("namespace", namespace), ("pod", name)) if slash else (("pod_uid", key),)


def _format_percent(parts: int) -> str:
    """Return millionths as percent with exact digits, so that the values of a GPU add up to 100."""
    whole, rest = divmod(parts, _PERCENT)
    return f"{whole}.{rest:04d}".rstrip("0").rstrip(".")


def _format_lines(lines: Iterator[Line]) -> str:
    """Return the lines grouped by metric as the format requires; lines without a value are left out."""
    groups: dict[Family, list[str]] = {}
    for family, part, value in lines:
        if value is not None:
            groups.setdefault(family, []).append(f"{family.name}{part}{_number(value)}\n")
    return "".join(f"{family.header}{''.join(found)}" for family, found in groups.items())


def _number(value: Number | str) -> str:
    if isinstance(value, float):
        return f"{value:.12g}" if math.isfinite(value) else "NaN"
    return str(value)


class _Churn:
    """Counts MIG instances that come into use and go out of use between samples."""

    def __init__(self) -> None:
        self._used: dict[str, str] | None = None
        self._allocations: Counter[str] = Counter()
        self._releases: Counter[str] = Counter()

    def see(self, sample: Sample) -> None:
        instances = [each for card in sample.gpus for each in card.instances if each.instance.uuid]
        used = {each.instance.uuid: each.instance.profile for each in instances if each.in_use}
        for each in instances:
            # Each profile ever seen keeps its counters, from 0.
            self._allocations[each.instance.profile] += 0
            self._releases[each.instance.profile] += 0
        if self._used is not None:
            self._allocations.update(profile for uuid, profile in used.items() if uuid not in self._used)
            self._releases.update(profile for uuid, profile in self._used.items() if uuid not in used)
        self._used = used

    def lines(self, node: str) -> Iterator[Line]:
        counted = ((families.MIG_ALLOCATIONS, self._allocations), (families.MIG_RELEASES, self._releases))
        for family, counts in counted:
            for profile, count in sorted(counts.items()):
                yield family, render_labels(("node", node), ("profile", profile)), count


class ExporterApp:
    """The ASGI application; `kgwe.telemetry.http.serving` serves it."""

    def __init__(self, exporter: Exporter, more: Callable[[], bytes] | None = None) -> None:
        """`more` returns other metrics of the process in the same format."""
        self._exporter = exporter
        self._open_labels = more

    def __call__(self, request: Request) -> Reply:
        if request.method not in {"GET", "HEAD"}:
            return Reply(405, b"only to be read\n")
        return self._respond(request.path)

    def _respond(self, path: str) -> Reply:
        if path == "/metrics":
            return Reply(
                200, self._exporter.render() + (self._open_labels() if self._open_labels else b""), CONTENT_TYPE
            )
        if path == "/healthz":
            return Reply(200, b"ok\n")
        if path in {"/health", "/readyz"}:
            problem = self._exporter.problem()
            return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        return Reply(404, _USAGE)
