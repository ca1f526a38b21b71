"""values.schema.json: the structure of values.yaml, with the settings of each process from their types.

Every key must be known. Helm refuses others with their path, before anything is installed.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from kgwe import yaml_text
from kgwe.apps.agent.settings import Settings as AgentSettings
from kgwe.apps.autoscaler.settings import Settings as AutoscalerSettings
from kgwe.apps.console.settings import Settings as ConsoleSettings
from kgwe.apps.cost.settings import Settings as CostSettings
from kgwe.apps.mig.settings import Settings as MigSettings
from kgwe.apps.optimizer.settings import Settings as OptimizerSettings
from kgwe.apps.scheduler.settings import Settings as SchedulerSettings
from kgwe.apps.webhook.settings import Settings as WebhookSettings
from kgwe.install import values_text
from kgwe.kube.api.kgwe import schedulerconfig

Schema = dict[str, Any]

#: component of the values -> settings of its process
SETTINGS: Final = {
    "scheduler": SchedulerSettings,
    "agent": AgentSettings,
    "migController": MigSettings,
    "optimizer": OptimizerSettings,
    "costEngine": CostSettings,
    "autoscaler": AutoscalerSettings,
    "webhook": WebhookSettings,
    "console": ConsoleSettings,
}

_DURATION: Final[Schema] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}
_BOOL: Final[Schema] = {"type": "boolean"}
_PERCENT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 100}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_PORT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 65535}
_OBJECT: Final[Schema] = {"type": "object"}
_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_TEXTS: Final[Schema] = {"type": "array", "items": {"type": "string"}}
_OBJECTS: Final[Schema] = {"type": "array", "items": _OBJECT}
_SELECTOR: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"matchLabels": _STRINGS, "matchExpressions": _OBJECTS},
}
_RESOURCES: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"requests": _OBJECT, "limits": _OBJECT, "claims": _OBJECTS},
}


def _closed(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


#: keys whose default says too little, by the end of their path
_BY_NAME: Final[dict[str, Schema]] = {
    "nodeSelector": _STRINGS,
    "tolerations": _OBJECTS,
    "affinity": _OBJECT,
    "extraEnv": _OBJECTS,
    "extraVolumes": _OBJECTS,
    "extraVolumeMounts": _OBJECTS,
    "labels": _STRINGS,
    "serviceAccountAnnotations": _STRINGS,
    "resources": _RESOURCES,
    "replicaCount": {"type": "integer", "minimum": 0, "maximum": 9},
    "minAvailable": {"type": ["integer", "string"]},
    "imagePullSecrets": _TEXTS,
    "prometheusNamespaceSelector": _SELECTOR,
    "clientNamespaceSelector": _SELECTOR,
    "port": _PORT,
    "apiServerPorts": {"type": "array", "items": _PORT},
    "outsidePorts": {"type": "array", "items": _PORT},
}
_BY_PATH: Final[dict[str, Schema]] = {
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "priorityClass.value": {"type": "integer", "minimum": -1000000000, "maximum": 1000000000},
    "certificates.source": {"enum": ["kgwe", "certManager", "existing"]},
    "certificates.issuerRef.kind": {"enum": ["Issuer", "ClusterIssuer"]},
    "certificates.days": _COUNT,
    "webhook.failurePolicy": {"enum": ["Ignore", "Fail"]},
    "serviceMonitors.interval": _DURATION,
    "scheduler.name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"},
    "controller.leaderElection.leaseDuration": _DURATION,
    "controller.leaderElection.renewDeadline": _DURATION,
    "controller.leaderElection.retryPeriod": _DURATION,
    "scheduler.config": _closed(
        {
            "enableTopologyAwareness": _BOOL,
            "enableMIGSupport": _BOOL,
            "enablePreemption": _BOOL,
            "enableGangScheduling": _BOOL,
            "topologyWeight": _PERCENT,
            "resourceWeight": _PERCENT,
            "balanceWeight": _PERCENT,
            "maxSchedulingAttempts": {"type": "integer", "minimum": 1, "maximum": 100},
            "schedulingTimeout": _DURATION,
            "strategy": {"enum": list(schedulerconfig.STRATEGIES)},
            "deviceMode": {"enum": list(schedulerconfig.DEVICE_MODES)},
            "maxUnprivilegedPriority": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
            "topology": _OBJECT,
            "topologyConstraints": _OBJECT,
            "domainWeights": _OBJECT,
        }
    ),
    "discovery.config": _closed(
        {
            "refreshInterval": _DURATION,
            "enableMIGDiscovery": _BOOL,
            "enableHealthMonitoring": _BOOL,
        }
    ),
    "agent.config": _closed({"grpcPort": _PORT, "telemetryInterval": _DURATION, "enableMPS": _BOOL}),
    "migController.config": _closed(
        {
            "enableAutoRebalancing": _BOOL,
            "rebalanceInterval": _DURATION,
            "minUtilizationThreshold": {"type": "number", "minimum": 0, "maximum": 1},
            "enablePrewarming": _BOOL,
            "preferredProfiles": _TEXTS,
            "maxReconfigurationTime": _DURATION,
        }
    ),
    "optimizer.config": _closed(
        {
            "enableMLPredictions": _BOOL,
            "modelUpdateInterval": _DURATION,
            "telemetryBufferSize": _COUNT,
        }
    ),
    "costEngine.config": _closed(
        {
            "defaultCurrency": {"const": "USD"},
            "billingGranularity": _DURATION,
            "retentionPeriod": _DURATION,
            "enableSpotOptimization": _BOOL,
            "enableRightsizing": _BOOL,
            "alertThresholds": {"type": "array", "items": {"type": "number", "minimum": 0}},
        }
    ),
}


def render(values: str) -> str:
    """Return the schema for this values.yaml."""
    abouts = {entry.dotted: entry.about for entry in values_text.parse_values(values)}
    found, components = msgspec.json.schema_components(SETTINGS.values(), ref_template="#/definitions/{name}")
    settings = dict(zip(SETTINGS, found, strict=True))
    tree = yaml_text.parse_yaml(values)
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_describe(tree, "", abouts, settings),
        "definitions": {name: _without_defaults(each) for name, each in components.items()},
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _describe(value: Any, path: str, abouts: dict[str, str], settings: dict[str, Schema]) -> Schema:
    name = path.rpartition(".")[2]
    component = path.partition(".")[0]
    if name == "settings" and component in settings:
        schema: Schema = dict(settings[component])
    elif path in _BY_PATH:
        schema = dict(_BY_PATH[path])
    elif name in _BY_NAME:
        schema = dict(_BY_NAME[name])
    elif isinstance(value, dict):
        inner = {
            key: _describe(each, f"{path}.{key}" if path else key, abouts, settings) for key, each in value.items()
        }
        schema = _closed(inner)
    else:
        schema = _describe_scalar(value)
    if "$ref" not in schema and (about := abouts.get(path)):
        schema = {"description": about, **schema}
    return schema


def _describe_scalar(value: Any) -> Schema:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return {"type": "integer"}
    if isinstance(value, list):
        return _TEXTS
    return {"type": "string"}


def _without_defaults(schema: Any) -> Any:
    """Remove defaults, titles and texts: the types have them, and Helm keeps the schema with every release."""
    if isinstance(schema, dict):
        return {
            key: _without_defaults(each) if key != "properties" else {n: _without_defaults(e) for n, e in each.items()}
            for key, each in schema.items()
            if key not in {"default", "title", "description"} or not isinstance(each, (str, int, float, list, dict))
        }
    if isinstance(schema, list):
        return [_without_defaults(each) for each in schema]
    return schema
