"""Checks of GPU nodes: agents, network labels, NVIDIA's operator and DCGM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.apps.discovery import freshness
from kgwe.install.doctor.findings import Finding, Level
from kgwe.kube.api import resources
from kgwe.model.network import domain_labels
from kgwe.model.units.phrasing import format_count, list_names

if TYPE_CHECKING:
    import datetime as dt

    from kgwe.install.doctor.findings import Cluster

_GPU: Final = "nvidia.com/"
_PRESENT: Final = "nvidia.com/gpu.present"
_EXPORTER: Final = "app.kubernetes.io/name in (dcgm-exporter,nvidia-dcgm-exporter)"
_EXPORTER_OF_OPERATOR: Final = "app=nvidia-dcgm-exporter"


def has_gpus(node: dict[str, Any]) -> bool:
    allocatable = node.get("status", {}).get("allocatable") or {}
    return any(name.startswith(_GPU) and str(amount) != "0" for name, amount in allocatable.items())


async def check_nodes(cluster: Cluster) -> list[Finding]:
    """Whether GPU nodes exist, and whether their labels tell how they are connected."""
    nodes = await cluster.list("/api/v1/nodes")
    gpu_nodes = [node for node in nodes if has_gpus(node)]
    found = [_judge_operator(nodes, gpu_nodes)]
    if gpu_nodes:
        found.append(_judge_network(gpu_nodes))
    return found


def _judge_operator(nodes: list[dict[str, Any]], gpu_nodes: list[dict[str, Any]]) -> Finding:
    labelled = [node for node in nodes if (node["metadata"].get("labels") or {}).get(_PRESENT) == "true"]
    if gpu_nodes:
        count = format_count(len(gpu_nodes), "node")
        unlabelled = [node["metadata"]["name"] for node in gpu_nodes if node not in labelled]
        if unlabelled:
            message = f"{count} with GPUs; without the label {_PRESENT}=true: {list_names(unlabelled)}"
            fix = "install NVIDIA's GPU feature discovery, or label them; the agent runs on labelled nodes only"
            return Finding("gpu-operator", Level.WARNING, message, fix)
        return Finding("gpu-operator", Level.OK, f"{count} with GPUs")
    if labelled:
        message = f"{format_count(len(labelled), 'node')} with the label {_PRESENT}=true, and no GPUs in Kubernetes"
        fix = "check NVIDIA's device plugin: kubectl get pods -A -l app=nvidia-device-plugin-daemonset"
        return Finding("gpu-operator", Level.ERROR, message, fix)
    message = "no node offers GPUs"
    fix = "install the NVIDIA GPU Operator, or NVIDIA's device plugin with GPU feature discovery"
    return Finding("gpu-operator", Level.WARNING, message, fix)


def _judge_network(gpu_nodes: list[dict[str, Any]]) -> Finding:
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in gpu_nodes}
    preset = domain_labels.detect_preset(labels.values())
    levels = domain_labels.get_preset(preset).levels if preset else ()
    keys = [key for level in levels for key in level.keys]
    bare = sorted(name for name, own in labels.items() if not any(own.get(key) for key in keys))
    fix = "run topograph, or label nodes by hand (docs/topology.md)"
    if len(bare) == len(labels):
        return Finding("network", Level.WARNING, "no GPU node says where it is in the network", fix)
    if bare:
        message = f"labels of {preset}; without any of them: {list_names(bare)}"
        return Finding("network", Level.WARNING, message, fix)
    return Finding("network", Level.OK, f"all GPU nodes have network labels ({preset})")


async def check_agents(cluster: Cluster, now: dt.datetime) -> list[Finding]:
    """Whether the agents report."""
    try:
        nodes = await cluster.client.list(resources.GPU_NODE)
    except errors.NotFound:
        return [Finding("agents", Level.SKIPPED, "the kind GPUNode is not installed")]
    if not nodes:
        fix = "install the agent (agent.enabled=true), and check the label nvidia.com/gpu.present=true of GPU nodes"
        message = "no agent has described a node: KGWE knows labels and resources of nodes, not their wiring"
        return [Finding("agents", Level.WARNING, message, fix)]
    bad = [seen for seen in freshness.judge_all(nodes, now) if not seen.is_good]
    if not bad:
        return [Finding("agents", Level.OK, f"{format_count(len(nodes), 'node')} described, all current")]
    names = list_names([each.node.metadata.name for each in bad])
    fix = f"kubectl get pods -n {cluster.node_namespace} -o wide; kgwe agent list shows every node"
    return [Finding("agents", Level.WARNING, f"{names}: {bad[0].reason or bad[0].freshness}", fix)]


async def check_exporters(cluster: Cluster) -> list[Finding]:
    """Whether dcgm-exporter runs."""
    for selector in (_EXPORTER, _EXPORTER_OF_OPERATOR):
        if pods := await cluster.list("/api/v1/pods", labelSelector=selector):
            return [Finding("dcgm", Level.OK, f"{format_count(len(pods), 'pod')} of dcgm-exporter")]
    message = "no pod of dcgm-exporter: activity of MIG slices is unknown"
    return [Finding("dcgm", Level.WARNING, message, "install dcgm-exporter, for example with the NVIDIA GPU Operator")]
