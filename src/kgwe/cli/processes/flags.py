"""Flags that processes of the control plane share. Left out, the settings file, the environment or the default says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

Kubeconfig = Annotated[
    Path | None,
    Parameter(env_var="KUBECONFIG", help="How to reach the API server; inside a cluster the service account is used."),
]
MetricsBindAddress = Annotated[
    str | None,
    Parameter(help="Where /metrics, /healthz and /readyz are served, such as :8080; port 0 takes a free one."),
]
LeaderElect = Annotated[
    bool | None, Parameter(help="Hold a Lease while acting, so that only one of several replicas does.")
]
DefaultImage = Annotated[str | None, Parameter(help="Container image of workloads that bring no podTemplate.")]
LogLevel = Annotated[str | None, Parameter(help="debug, info, warning or error.")]
