"""Pods that use many of the fields a pod can have."""

from __future__ import annotations

from typing import Any

from kgwe.kube.dialects.membership import PLAN_GATE

GATE = {"name": PLAN_GATE}


def _container(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "registry.example/none:1", **fields}


def _pod(name: str, *, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"schedulerName": "nobody", "containers": [_container("main")], **spec},
    }


def _line(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ROOM = {"cpu": "1500m", "memory": "1.5Gi", "nvidia.com/gpu": "4", "example.com/none": "0"}
_TEAM = {"matchLabels": {"team": "a"}}
_PROBE = {"httpGet": {"path": "/healthz", "port": "http", "httpHeaders": [{"name": "A", "value": "b"}]}}

_AFFINITY = {
    "nodeAffinity": {
        _REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [_line("zone", "In", "a", "b"), _line("slow", "DoesNotExist")]},
                {"matchExpressions": [_line("cards", "Gt", "4")], "matchFields": [_line("metadata.name", "In", "n")]},
            ]
        },
        _PREFERRED: [{"weight": 7, "preference": {"matchExpressions": [_line("disk", "Exists")]}}],
    },
    "podAffinity": {_REQUIRED: [{"labelSelector": _TEAM, "topologyKey": "zone"}]},
    "podAntiAffinity": {
        _PREFERRED: [{"weight": 3, "podAffinityTerm": {"labelSelector": _TEAM, "topologyKey": "host"}}]
    },
}

_CONTAINERS = [
    _container(
        "main",
        command=["sh", "-c"],
        args=["sleep 1"],
        workingDir="/",
        ports=[{"name": "http", "containerPort": 80, "protocol": "TCP"}],
        envFrom=[{"configMapRef": {"name": "settings", "optional": True}}],
        env=[
            {"name": "PLAIN", "value": "ä"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        ],
        resources={"requests": {"cpu": "1", "nvidia.com/gpu": "4"}, "limits": _ROOM},
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch", "readOnly": True, "subPath": "x"}],
        livenessProbe=_PROBE,
        readinessProbe={"tcpSocket": {"port": 80}, "periodSeconds": 3},
        startupProbe={"exec": {"command": ["true"]}},
        lifecycle={"preStop": {"exec": {"command": ["true"]}}},
        securityContext={"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN"]}, "allowPrivilegeEscalation": False},
        stdin=True,
        tty=True,
    ),
    _container("side", resources={"requests": {"memory": "64Mi"}}),
]

_VOLUMES = [
    {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "none"}},
    {"name": "all", "projected": {"sources": [{"downwardAPI": {"items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    ]}}]}},
]  # fmt: skip

MANY: list[dict[str, Any]] = [
    _pod("plain"),
    _pod(
        "noted",
        metadata={
            "labels": {"team": "a", "empty": "", "app.kubernetes.io/name": "x"},
            "annotations": {"text": "ä\n\u2603" * 400, "empty": "", "test.example/seat": "old"},
            "finalizers": ["test.example/one", "test.example/two"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1-2", "controller": True},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "3", "blockOwnerDeletion": False},
            ],
        },
    ),
    _pod("gated", schedulingGates=[GATE, {"name": "test.example/other"}], affinity=_AFFINITY),
    _pod("empty-affinity", schedulingGates=[GATE], affinity={"nodeAffinity": {}}),
    _pod(
        "full",
        metadata={"labels": {"team": "b"}},
        schedulingGates=[GATE],
        containers=_CONTAINERS,
        initContainers=[_container("first"), _container("always", restartPolicy="Always")],
        volumes=_VOLUMES,
        nodeSelector={"zone": "a", "empty": ""},
        tolerations=[
            {"operator": "Exists"},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
            {"key": "b", "value": "c", "effect": "NoSchedule"},
        ],
        topologySpreadConstraints=[
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": _TEAM}
        ],
        securityContext={"fsGroup": 0, "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
        hostAliases=[{"ip": "10.0.0.1", "hostnames": ["a", "b"]}],
        dnsConfig={"nameservers": ["10.0.0.2"], "options": [{"name": "ndots", "value": "2"}]},
        dnsPolicy="None",
        restartPolicy="Never",
        activeDeadlineSeconds=3600,
        terminationGracePeriodSeconds=0,
        hostname="h",
        subdomain="s",
        readinessGates=[{"conditionType": "test.example/ready"}],
        imagePullSecrets=[{"name": "secret"}],
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        shareProcessNamespace=True,
        priorityClassName="system-cluster-critical",
        os={"name": "linux"},
    ),
    _pod(
        "claims",
        schedulingGates=[GATE],
        resourceClaims=[
            {"name": "cards", "resourceClaimTemplateName": "cards"},
            {"name": "named", "resourceClaimName": "mine"},
        ],
        containers=[_container("main", resources={"claims": [{"name": "cards"}]})],
    ),
    _pod("whole", resources={"requests": {"cpu": "2"}, "limits": {"cpu": "3", "memory": "1Gi"}}),
]
CLAIMS = [{"name": "cards", "resourceClaimName": "made"}, {"name": "named"}]
STATUS: dict[str, Any] = {
    "status": {
        "phase": "Running",
        "reason": "Because",
        "message": "as told",
        "startTime": "2026-01-02T03:04:05Z",
        "nominatedNodeName": "n1",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Why",
                "message": "m",
                "lastTransitionTime": "2026-01-02T03:04:06Z",
                "observedGeneration": 1,
            },
            {"type": "test.example/ready", "status": "True", "lastProbeTime": "1970-01-01T00:00:00Z"},
        ],
    }
}
