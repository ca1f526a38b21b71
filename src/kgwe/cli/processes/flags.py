"""Flags that the control plane processes share. An omitted flag falls back to the settings file, environment or
default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Kubeconfig = Annotated[
    Path | None,
    Parameter(env_var="KUBECONFIG", help="Path of the kubeconfig. Default inside a cluster: the service account."),
]
MetricsBindAddress = Annotated[
    str | None,
    Parameter(help="Address for /metrics, /healthz and /readyz, such as :8080; port 0 picks a free port."),
]
LeaderElect = Annotated[bool | None, Parameter(help="Elect a leader with a Lease, so that only one replica is active.")]
DefaultImage = Annotated[str | None, Parameter(help="Container image of workloads without a podTemplate.")]
LogLevel = Annotated[str | None, Parameter(help="Log level: debug, info, warning or error.")]
