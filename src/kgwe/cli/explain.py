"""`kgwe explain`: why a workload or pod is where it is, or why it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.apps.whatif import explain as app_explain
from kgwe.apps.whatif import limited, words
from kgwe.apps.whatif import subject as subjects
from kgwe.apps.whatif.explanation import Explanation
from kgwe.cli import subject_name
from kgwe.cluster import offline
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden, KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from kgwe.cli.subject_name import SubjectName

app = App(
    name="explain",
    help="""Why a GPUWorkload or pod is where it is, or why it waits and what would start it.

Only reads the API; no scheduler has to run. The scheduler's own planner runs here on the cluster as it is now. The last
status that the scheduler wrote is shown as well. For a user who may read one namespace only, explain shows status,
conditions and Events, and names what it could not read.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe explain llm-training
  kgwe explain llm-training -n research -o yaml
  kgwe explain research/llm-training          the same with its namespace, as other commands print it
  kgwe explain pod/trainer-0                  a pod, if a workload has the same name
  kgwe explain gw/small                       the GPUWorkload of kgwe.nvidia.io, if both kinds have the name
  kgwe explain gpuw/small                     the GPUWorkload of gpu.warp.dev; also gpuworkload.gpu.warp.dev/small""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]


@app.default
def explain(
    name: str,
    /,
    *,
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"])] = None,
    kind: Literal["workload", "pod"] | None = None,
    output: Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])] = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Explain one workload or pod.

    Parameters
    ----------
    name
        NAME or NAMESPACE/NAME of a workload or pod. With a kind: pod/NAME, workload/NAME, gw/NAME (GPUWorkload of
        kgwe.nvidia.io) or gpuw/NAME (of gpu.warp.dev), also as KIND/NAMESPACE/NAME.
    namespace
        Its namespace. Default: the namespace of the kubeconfig's context.
    kind
        Search only workloads, or only pods.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")
    told = asyncio.run(_explain(subject_name.parse_name(name, namespace, kind), kubeconfig))
    terminal.write(_format_explanation(told, output))
    return 0


def _format_explanation(told: Explanation, output: str) -> str:
    if output == "yaml":
        return msgspec.yaml.encode(told).decode()
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(told)).decode() + "\n"
    return words.text(told)


async def _explain(asked: SubjectName, kubeconfig: Path | None) -> Explanation:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-explain") as client:
        where = asked.namespace or client.namespace
        try:
            seen = await offline.read(client)
        except offline.ClusterUnreadable:
            seen = await offline.read_namespace(client, where)
        try:
            subject = subjects.find(seen, asked.name, where, asked.kind, asked.group)
        except errors.NotFound as exc:
            ended = await _explain_ended_pod(client, asked.name, where) if asked.kind != "workload" else None
            if ended is not None:
                return ended
            if not seen.warnings:
                raise
            raise errors.NotFound(f"{exc} ({'; '.join(seen.warnings)})") from exc
        if not seen.namespace:
            return app_explain.explain(seen, subject)
        happened, problem = await limited.events(offline.read_only(client), subject)
        seen.warnings += (problem,) if problem else ()
        return limited.explain_limited(seen, subject, happened)


async def _explain_ended_pod(client: KubeClient, name: str, namespace: str) -> Explanation | None:
    """A pod that has ended, which the view of held GPUs leaves out."""
    try:
        pod = await offline.read_only(client).get(resources.POD, name, namespace)
    except (errors.NotFound, Forbidden):
        return None
    phase = pod.status.phase
    where = f" on {pod.spec.nodeName}" if pod.spec.nodeName else ""
    why = f": {pod.status.message or pod.status.reason}" if pod.status.message or pod.status.reason else ""
    return Explanation("Pod", namespace, name, phase, f"ended{where} ({phase}{why}); it holds no GPUs")
