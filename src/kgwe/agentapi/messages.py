"""Conversions between the agent's data and its protocol messages. Absent values stay absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.kube.api.kgwe import gpunode
from kgwe.model.gpu.driver_data import Throttle
from kgwe.proto import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.model.gpu.driver_data import Instance, Reading
    from kgwe.model.telemetry.sample import NodeReadings, Series
    from kgwe.model.telemetry.window import Aggregate

#: full name of the gRPC service
SERVICE: Final = "kgwe.agent.v1.Agent"
#: DNS name in the certificates of all agents, besides the name of the node
AGENT_NAME: Final = "kgwe-agent"

# --- topology -------------------------------------------------------------------------------------------


def encode_topology(
    node: str, status: gpunode.GPUNodeStatus, *, age_s: float, matrix: Iterable[Iterable[str]]
) -> pb.Topology:
    return pb.Topology(
        node=node,
        age_s=age_s,
        driver_version=status.driverVersion,
        cuda_version=status.cudaVersion,
        gpus=[_encode_gpu(each) for each in status.gpus],
        nics=[_encode_nic(each) for each in status.nics],
        fabric=_encode_fabric(status.fabric),
        matrix=[pb.Row(cells=list(row)) for row in matrix],
    )


def _encode_fabric(fabric: gpunode.Fabric | None) -> pb.Fabric | None:
    return None if fabric is None else pb.Fabric(cluster_uuid=fabric.clusterUUID, clique_id=fabric.cliqueID)


def _encode_gpu(card: gpunode.GPUDevice) -> pb.Gpu:
    return pb.Gpu(
        uuid=card.uuid,
        index=card.index,
        model=card.model,
        memory_mib=card.memoryMiB or None,
        architecture=card.architecture,
        compute_capability=card.computeCapability,
        numa_node=card.numaNode,
        cpu_affinity=card.cpuAffinity,
        pcie=_encode_pcie(card.pcie),
        nvlink=_encode_nvlink(card.nvlink),
        mig=pb.Mig(
            capable=card.mig.capable,
            enabled=card.mig.enabled,
            instances=[
                pb.MigInstance(
                    uuid=each.uuid,
                    profile=each.profile,
                    instance_id=each.instanceID,
                    start=each.start,
                    size=each.size,
                    memory_mib=each.memoryMiB,
                )
                for each in card.mig.instances
            ],
        ),
    )


def _encode_pcie(location: gpunode.PCIeLocation | None) -> pb.Pcie | None:
    if location is None:
        return None
    return pb.Pcie(bus_id=location.busID, root_complex=location.rootComplex, switches=location.switches)


def _encode_nvlink(state: gpunode.NVLinkState | None) -> pb.Nvlink | None:
    if state is None:
        return None
    return pb.Nvlink(
        version=state.version,
        links=state.links,
        max_links=state.maxLinks,
        nv_switch=state.nvSwitch,
        gb_per_s=state.bandwidthGBps,
        peers=[pb.NvlinkPeer(gpu=each.gpu, links=each.links, max_links=each.maxLinks) for each in state.peers],
    )


def _encode_nic(nic: gpunode.NetworkInterface) -> pb.Nic:
    return pb.Nic(
        name=nic.name, gbit_per_s=nic.gbitPerSecond, numa_node=nic.numaNode, pcie=_encode_pcie(nic.pcie), rail=nic.rail
    )


# --- health ---------------------------------------------------------------------------------------------


def encode_health(node: str, status: gpunode.GPUNodeStatus) -> pb.Health:
    return pb.Health(
        node=node,
        gpus=[
            pb.GpuHealth(
                uuid=each.uuid,
                index=each.index,
                state=each.health.state,
                reason=each.health.reason,
                message=each.health.message,
                last_xid=each.health.lastXID,
                since=each.health.lastTransitionTime or "",
            )
            for each in status.gpus
        ],
    )


# --- telemetry ------------------------------------------------------------------------------------------


def encode_telemetry(node: str, sample: NodeReadings, missed: int, wanted: frozenset[str]) -> pb.Telemetry:
    """Return a telemetry message for these devices; for all if none is named."""
    return pb.Telemetry(
        node=node,
        unix_ms=sample.unix_ms,
        missed=missed,
        readings=[_encode_reading(each) for each in sample.readings if not wanted or each.uuid in wanted],
        aggregates=[
            _encode_aggregate(series, each)
            for series, each in sample.aggregates.items()
            if not wanted or series.uuid in wanted
        ],
    )


def _encode_aggregate(series: Series, told: Aggregate) -> pb.Aggregate:
    return pb.Aggregate(
        uuid=series.uuid,
        name=series.name,
        pod=series.pod,
        samples=told.samples,
        gaps=told.gaps,
        mean=told.mean,
        maximum=told.maximum,
        p95=told.p95,
        last=told.last,
    )


def _encode_reading(reading: Reading) -> pb.Reading:
    return pb.Reading(
        uuid=reading.uuid,
        util=reading.util,
        memory_util=reading.memory_util,
        memory_used_mib=reading.memory_used_mib,
        memory_total_mib=reading.memory_total_mib,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        energy_j=reading.energy_j,
        gpu_c=reading.gpu_c,
        memory_c=reading.memory_c,
        sm_mhz=reading.sm_mhz,
        memory_mhz=reading.memory_mhz,
        throttle=[str(each.name) for each in Throttle if reading.throttle and each in reading.throttle],
        pcie_tx_bytes_per_s=reading.pcie_tx_bytes_per_s,
        pcie_rx_bytes_per_s=reading.pcie_rx_bytes_per_s,
        nvlink_tx_bytes=_sum(reading.nvlink_tx_bytes),
        nvlink_rx_bytes=_sum(reading.nvlink_rx_bytes),
        processes=[
            pb.Process(pid=each.pid, memory_mib=each.memory_mib, util=each.util, instance_id=each.instance_id)
            for each in reading.processes
        ],
        instances=[
            pb.InstanceReading(instance_id=number, memory_used_mib=used) for number, used in reading.instance_memory_mib
        ],
        ecc_corrected=reading.faults.ecc_corrected,
        ecc_uncorrected=reading.faults.ecc_uncorrected,
        lost=reading.is_lost,
    )


def _sum(per_link: tuple[tuple[int, int], ...]) -> int | None:
    return sum(count for _, count in per_link) if per_link else None


def encode_instances(cut: Iterable[Instance]) -> list[pb.MigInstance]:
    return [
        pb.MigInstance(
            uuid=each.uuid,
            profile=each.profile,
            instance_id=each.instance_id,
            start=each.start,
            size=each.size,
            memory_mib=each.memory_mib,
        )
        for each in cut
    ]


# --- and back -------------------------------------------------------------------------------------------


def decode_status(told: pb.Topology, how: pb.Health | None = None) -> gpunode.GPUNodeStatus:
    """Return the status as in a GPUNode; health is unknown unless it was requested."""
    states = {each.uuid: _decode_health(each) for each in how.gpus} if how else {}
    unknown = gpunode.GPUHealth(state=gpunode.HealthState.UNKNOWN)
    gpus = tuple(_decode_device(each, states.get(each.uuid, unknown)) for each in told.gpus)
    return gpunode.GPUNodeStatus(
        gpus=gpus,
        gpuCount=len(gpus),
        healthyGPUs=sum(each.health.state == gpunode.HealthState.HEALTHY for each in gpus),
        model=gpus[0].model if gpus else "",
        driverVersion=told.driver_version,
        cudaVersion=told.cuda_version,
        nics=tuple(
            gpunode.NetworkInterface(
                each.name,
                each.gbit_per_s,
                each.numa_node if each.HasField("numa_node") else None,
                _decode_location(each.pcie) if each.HasField("pcie") else None,
                each.rail if each.HasField("rail") else None,
            )
            for each in told.nics
        ),
        fabric=gpunode.Fabric(told.fabric.cluster_uuid, told.fabric.clique_id) if told.HasField("fabric") else None,
    )


def _decode_health(told: pb.GpuHealth) -> gpunode.GPUHealth:
    return gpunode.GPUHealth(
        state=told.state,
        reason=told.reason,
        message=told.message,
        lastXID=told.last_xid if told.HasField("last_xid") else None,
        lastTransitionTime=told.since or None,
    )


def _decode_device(told: pb.Gpu, how: gpunode.GPUHealth) -> gpunode.GPUDevice:
    return gpunode.GPUDevice(
        uuid=told.uuid,
        index=told.index,
        model=told.model,
        memoryMiB=told.memory_mib,
        health=how,
        architecture=told.architecture,
        computeCapability=told.compute_capability,
        numaNode=told.numa_node if told.HasField("numa_node") else None,
        cpuAffinity=told.cpu_affinity,
        pcie=_decode_location(told.pcie) if told.HasField("pcie") else None,
        nvlink=_decode_links(told.nvlink) if told.HasField("nvlink") else None,
        mig=gpunode.MIGState(
            capable=told.mig.capable,
            enabled=told.mig.enabled,
            instances=tuple(
                gpunode.MIGInstance(each.uuid, each.profile, each.instance_id, each.start, each.size, each.memory_mib)
                for each in told.mig.instances
            ),
        ),
    )


def _decode_location(told: pb.Pcie) -> gpunode.PCIeLocation:
    return gpunode.PCIeLocation(told.bus_id, told.root_complex, tuple(told.switches))


def _decode_links(told: pb.Nvlink) -> gpunode.NVLinkState:
    return gpunode.NVLinkState(
        version=told.version,
        links=told.links,
        maxLinks=told.max_links,
        nvSwitch=told.nv_switch,
        bandwidthGBps=told.gb_per_s,
        peers=tuple(gpunode.NVLinkPeer(each.gpu, each.links, each.max_links) for each in told.peers),
    )
