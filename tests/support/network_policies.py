"""An evaluator of NetworkPolicies: whether a connection between two ends is allowed, by the rules of Kubernetes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pod:
    """A pod, with the numbers of its named ports."""

    name: str
    namespace: str
    labels: dict[str, str]
    ports: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """An address outside of the pod network."""

    name: str
    address: str


End = Pod | Host


class Evaluator:
    """Policies of a cluster, and the labels of its namespaces."""

    def __init__(self, policies: list[dict[str, Any]], namespaces: dict[str, dict[str, str]]) -> None:
        self._policies = policies
        self._namespaces = {name: {"kubernetes.io/metadata.name": name, **own} for name, own in namespaces.items()}

    def allows(self, source: End, target: End, port: int, protocol: str = "TCP") -> bool:
        """Both sides must allow it; an end without policies allows everything."""
        out = not isinstance(source, Pod) or self._allows(source, target, target, port, protocol, "Egress")
        into = not isinstance(target, Pod) or self._allows(target, source, target, port, protocol, "Ingress")
        return out and into

    def _allows(self, pod: Pod, other: End, target: End, port: int, protocol: str, direction: str) -> bool:
        own = [each for each in self._policies if self._selects(each, pod) and direction in each["spec"]["policyTypes"]]
        if not own:
            return True
        rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
        return any(
            self._matches_peers(rule.get(peers), other, policy["metadata"]["namespace"])
            and _matches_ports(rule.get("ports"), target, port, protocol)
            for policy in own
            for rule in policy["spec"].get(rules) or ()
        )

    def _selects(self, policy: dict[str, Any], pod: Pod) -> bool:
        return policy["metadata"]["namespace"] == pod.namespace and _matches(policy["spec"]["podSelector"], pod.labels)

    def _matches_peers(self, peers: list[dict[str, Any]] | None, other: End, home: str) -> bool:
        return not peers or any(self._matches_peer(each, other, home) for each in peers)

    def _matches_peer(self, peer: dict[str, Any], other: End, home: str) -> bool:
        if "ipBlock" in peer:
            # Network plugins do not apply addresses to pods.
            return isinstance(other, Host) and _is_in(other.address, peer["ipBlock"])
        if not isinstance(other, Pod):
            return False
        if "namespaceSelector" in peer:
            if not _matches(peer["namespaceSelector"], self._namespaces[other.namespace]):
                return False
        elif other.namespace != home:
            return False
        return _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert not selector.get("matchExpressions"), "not evaluated here"
    return all(labels.get(name) == value for name, value in (selector.get("matchLabels") or {}).items())


def _matches_ports(ports: list[dict[str, Any]] | None, target: End, port: int, protocol: str) -> bool:
    if not ports:
        return True
    named = target.ports if isinstance(target, Pod) else {}
    numbers = {
        each["port"] if isinstance(each["port"], int) else named.get(each["port"])
        for each in ports
        if each.get("protocol", "TCP") == protocol
    }
    return port in numbers


def _is_in(address: str, block: dict[str, Any]) -> bool:
    found = ipaddress.ip_address(address)
    excepted = any(found in ipaddress.ip_network(each) for each in block.get("except") or ())
    return found in ipaddress.ip_network(block["cidr"]) and not excepted
