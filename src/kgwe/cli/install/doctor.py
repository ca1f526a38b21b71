"""`kgwe doctor`: checks an installation of KGWE, and says what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.install import chart_files
from kgwe.install.doctor import findings
from kgwe.install.doctor.findings import Level
from kgwe.install.doctor.main import Doctor
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.local.host import assets
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from kgwe.install.doctor.findings import Finding

app = App(
    name="doctor",
    help="""Check an installation of KGWE, and say what to do about each finding.

It changes nothing. It checks the version of Kubernetes, kinds, namespaces, the permissions of every service account,
policies, certificates, processes, the leader, whether kube-scheduler asks KGWE, stores, price files, GPU nodes and
their network labels, agents, and dcgm-exporter. Exit code 1 if there is an error.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe doctor
  kgwe doctor -o json
  kgwe doctor --only permissions --only leader
  kgwe doctor --namespace gpu-platform --kubeconfig "$(kgwe local kubeconfig --path)" """,
)


@app.default
def doctor(
    *,
    only: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    namespace: str = "kgwe-system",
    node_namespace: str = "kgwe-node",
    lease_namespace: str = "",
    output: Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])] = "table",
    kubeconfig: Annotated[Path | None, Parameter(env_var="KUBECONFIG")] = None,
) -> int:
    """Check an installation.

    Parameters
    ----------
    only
        Name of a check; repeat it for several. Default: all.
    namespace
        Namespace of KGWE.
    node_namespace
        Namespace of the agents.
    lease_namespace
        Namespace of the scheduler's Lease. Default: the namespace of KGWE.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    logs.configure(level="error")

    async def examine() -> list[Finding]:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-doctor") as client:
            made = Doctor(
                client,
                load_rights(namespace, node_namespace),
                namespace=namespace,
                node_namespace=node_namespace,
                lease_namespace=lease_namespace,
            )
            return await made.examine(only)

    found = asyncio.run(examine())
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    elif output == "yaml":
        terminal.write(msgspec.yaml.encode(found).decode())
    else:
        terminal.write(findings.format_table(found))
    return 1 if any(each.level is Level.ERROR for each in found) else 0


def load_rights(namespace: str, node_namespace: str) -> list[manifests.Document]:
    """Return the roles and bindings of this release, for these namespaces."""
    found: list[manifests.Document] = []
    for name in sorted({*chart_files.SOURCES.values()}):
        path = assets.find_asset("deploy") / name
        if path.is_file():
            found += manifests.load_manifests(path)
    names = {"kgwe-system": namespace, "kgwe-node": node_namespace}
    for document in found:
        meta = document["metadata"]
        meta["namespace"] = names.get(meta.get("namespace", ""), meta.get("namespace", ""))
        for subject in document.get("subjects") or ():
            subject["namespace"] = names.get(subject.get("namespace", ""), subject.get("namespace", ""))
    return found
