"""Values of the seeds' chart, which the chart of KGWE accepts as they are."""

from __future__ import annotations

from typing import Any

#: keys and defaults that users of the seeds' chart have in their values
SEED: dict[str, Any] = {
    "scheduler": {
        "enabled": True,
        "name": "kgwe-scheduler",
        "replicaCount": 2,
        "config": {
            "enableTopologyAwareness": True,
            "enableMIGSupport": True,
            "enablePreemption": True,
            "enableGangScheduling": True,
            "topologyWeight": 40,
            "resourceWeight": 35,
            "balanceWeight": 25,
            "maxSchedulingAttempts": 3,
            "schedulingTimeout": "30s",
        },
        "podDisruptionBudget": {"minAvailable": 1},
    },
    "controller": {
        "leaderElection": {
            "enabled": True,
            "namespace": "kube-system",
            "leaseDuration": "15s",
            "renewDeadline": "10s",
            "retryPeriod": "2s",
        }
    },
    "discovery": {"config": {"refreshInterval": "30s", "enableMIGDiscovery": True, "enableHealthMonitoring": True}},
    "optimizer": {"config": {"enableMLPredictions": True, "modelUpdateInterval": "1h", "telemetryBufferSize": 1000}},
    "migController": {
        "enabled": True,
        "config": {
            "enableAutoRebalancing": True,
            "rebalanceInterval": "5m",
            "minUtilizationThreshold": 0.3,
            "enablePrewarming": True,
            "preferredProfiles": ["1g.10gb", "2g.20gb", "3g.40gb"],
        },
    },
    "costEngine": {
        "config": {
            "defaultCurrency": "USD",
            "billingGranularity": "1s",
            "retentionPeriod": "90d",
            "enableSpotOptimization": True,
            "enableRightsizing": True,
            "alertThresholds": [0.5, 0.75, 0.9, 1.0],
        }
    },
    "agent": {"config": {"grpcPort": 50052, "telemetryInterval": "5s", "enableMPS": False}},
    "webhook": {"failurePolicy": "Fail"},
}
