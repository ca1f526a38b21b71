"""Variables that several dashboards share."""

from __future__ import annotations

from typing import Final

from kgwe.monitoring.panels import Variable

NODE: Final = Variable("node", "kgwe:gpu_activity:ratio", "node", "Node")
NAMESPACE: Final = Variable("namespace", "kgwe:pod_gpu_activity:ratio", "namespace", "Namespace")
POD: Final = Variable("pod", 'kgwe:pod_gpu_activity:ratio{namespace=~"$namespace"}', "pod", "Pod")
