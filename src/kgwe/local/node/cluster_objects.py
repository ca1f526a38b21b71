"""API objects of a cluster with a real node: rights of its processes, and the Services of API server and DNS."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from kgwe.errors import NotFound
from kgwe.kube.translate import device_manifests
from kgwe.local.cluster import certificates
from kgwe.local.node.addresses import DNS_ADDRESS, RELAY_PORT
from kgwe.model.simfleet import inventory

if TYPE_CHECKING:
    from kgwe.local.cluster.admin_api import Api
    from kgwe.local.node.addresses import Addresses
    from kgwe.model.simfleet.inventory import FleetNode

_RBAC: Final = "rbac.authorization.k8s.io"
_DNS: Final = "kube-dns"
# Labels by which `kgwe local fleet` and kwok find simulated nodes, and those that the kubelet writes.
_NOT_REAL: Final = frozenset({"type", inventory.FLEET_LABEL, "kubernetes.io/arch", "beta.kubernetes.io/arch"})


def apply_objects(api: Api, addresses: Addresses) -> None:
    """Create or change everything but the Node itself, which the kubelet creates."""
    _bind_role(api, certificates.KUBELET_CLIENT.user, "system:kubelet-api-admin")
    name = certificates.COREDNS.user
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    api.apply(f"/apis/{_RBAC}/v1/clusterroles/{name}", role)
    _bind_role(api, name, name)
    for device_class in device_manifests.list_classes():
        api.apply(f"/apis/resource.k8s.io/v1/deviceclasses/{device_class['metadata']['name']}", device_class)
    _apply_endpoints(api, "default", "kubernetes", addresses.host, {"https": ("TCP", RELAY_PORT)})
    ports = [{"name": proto.lower(), "protocol": proto, "port": 53} for proto in ("UDP", "TCP")]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _DNS},
        "spec": {"clusterIP": DNS_ADDRESS, "ports": ports},
    }
    api.apply(f"/api/v1/namespaces/kube-system/services/{_DNS}", service)
    _apply_endpoints(api, "kube-system", _DNS, addresses.node, {"udp": ("UDP", 53), "tcp": ("TCP", 53)})


def _bind_role(api: Api, user: str, role: str) -> None:
    api.apply(
        f"/apis/{_RBAC}/v1/clusterrolebindings/{user}",
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
        },
    )


def _apply_endpoints(api: Api, namespace: str, service: str, address: str, ports: dict[str, tuple[str, int]]) -> None:
    body: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": name, "protocol": proto, "port": port} for name, (proto, port) in ports.items()],
    }
    api.apply(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{service}", body)


def label_node(api: Api, machine: FleetNode) -> None:
    """Give the Node the labels that components of a real GPU cluster would write."""
    labels = {key: value for key, value in inventory.labels(machine).items() if key not in _NOT_REAL}
    api.merge(f"/api/v1/nodes/{machine.name}", {"metadata": {"labels": labels}})


def read_node(api: Api, name: str) -> dict[str, Any] | None:
    try:
        return api.request("GET", f"/api/v1/nodes/{name}")
    except NotFound:
        return None


def is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def remove_node(api: Api, name: str) -> None:
    """Delete the Node and what belongs to it. Its kubelet must be gone, so its pods are deleted at once."""
    listed = api.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")
    paths = [
        f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
        for pod in listed["items"]
    ]
    paths += [f"/api/v1/nodes/{name}", f"/apis/kgwe.nvidia.io/v1/gpunodes/{name}"]
    for path in paths:
        with contextlib.suppress(NotFound):
            api.request("DELETE", path)
