"""`kgwe install`, `kgwe upgrade` and `kgwe uninstall`: the chart of this release, with Helm."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.install import helm
from kgwe.install.namespaces import label_namespace
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.crd import definitions
from kgwe.local.host import assets, progress

_RELEASE = "kgwe"
_CHART = "charts/kgwe"

Values = Annotated[tuple[Path, ...], Parameter(name=["--values", "-f"], negative="")]
Set = Annotated[tuple[str, ...], Parameter(name="--set", negative="")]
Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]

install = App(
    name="install",
    help="""Install KGWE with the Helm chart of this release.

The namespace is created and enforces the restricted Pod Security level. Helm 4 or 3 is taken from PATH; if there is
none, it is built once, which takes minutes.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe install
  kgwe install --set scheduler.enabled=true --set migController.enabled=true
  kgwe install -f charts/kgwe/values-production.yaml --set global.imageRegistry=registry.example.com/team
  kgwe install --set secondScheduler.enabled=true          where kube-scheduler cannot be configured
  kgwe install --dry-run                                   print the manifests""",
)
upgrade = App(
    name="upgrade",
    help="""Upgrade KGWE to the chart of this release. Values of the installation are kept.

The kinds are upgraded, too. With --wait a failed upgrade is rolled back. Workloads run on meanwhile.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe upgrade
  kgwe upgrade --set autoscaler.enabled=true
  kgwe upgrade --wait""",
)
uninstall = App(
    name="uninstall",
    help="""Remove KGWE. Kinds, workloads and their pods stay.

Remove the extender from kube-scheduler's configuration first: otherwise GPU pods wait for a KGWE that no longer
answers. `kgwe install` later finds all workloads again.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe uninstall
  kgwe uninstall --delete-kinds --yes     also delete the kinds, and with them every workload of KGWE""",
)


@install.default
def run_install(
    *,
    values: Values = (),
    settings: Set = (),
    namespace: str = "kgwe-system",
    release: str = _RELEASE,
    chart: Path | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Install KGWE.

    Parameters
    ----------
    values
        Values file; repeat it for several.
    settings
        A single value, such as scheduler.replicaCount=3; repeat it for several.
    namespace
        Namespace of KGWE.
    release
        Name of the release.
    chart
        Folder or archive of the chart. Default: the chart of this release.
    wait
        Wait until all pods are ready, and remove what was installed if they are not.
    dry_run
        Print the manifests, and install nothing.
    kubeconfig
        Path of the kubeconfig file.
    """
    tool = _find_helm(kubeconfig)
    options = helm.build_options(values, settings)
    path = chart or assets.find_asset(_CHART)
    if dry_run:
        terminal.write(tool.render(path, *options, namespace=namespace, release=release))
        return
    asyncio.run(_prepare(kubeconfig, namespace))
    if any(each["name"] == release for each in tool.list_releases(namespace)):
        raise errors.Permanent(f"release {release} is installed in namespace {namespace}; use kgwe upgrade")
    waits = ("--wait", "--rollback-on-failure" if tool.major >= helm.NEWEST else "--atomic") if wait else ()
    terminal.write(tool.run("install", release, str(path), "--namespace", namespace, *options, *waits))


@upgrade.default
def run_upgrade(
    *,
    values: Values = (),
    settings: Set = (),
    namespace: str = "kgwe-system",
    release: str = _RELEASE,
    chart: Path | None = None,
    wait: Annotated[bool, Parameter(negative="")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Upgrade KGWE.

    Parameters
    ----------
    values
        Values file; repeat it for several.
    settings
        A single value, such as scheduler.replicaCount=3; repeat it for several.
    namespace
        Namespace of KGWE.
    release
        Name of the release.
    chart
        Folder or archive of the chart. Default: the chart of this release.
    wait
        Wait until all pods are ready, and roll back if they are not.
    kubeconfig
        Path of the kubeconfig file.
    """
    tool = _find_helm(kubeconfig)
    if not any(each["name"] == release for each in tool.list_releases(namespace)):
        raise errors.Permanent(f"no release {release} in namespace {namespace}; use kgwe install")
    path = chart or assets.find_asset(_CHART)
    waits = ("--wait", "--rollback-on-failure" if tool.major >= helm.NEWEST else "--atomic") if wait else ()
    options = ("--reset-then-reuse-values", *helm.build_options(values, settings), *waits)
    terminal.write(tool.run("upgrade", release, str(path), "--namespace", namespace, *options))


@uninstall.default
def run_uninstall(
    *,
    namespace: str = "kgwe-system",
    release: str = _RELEASE,
    delete_kinds: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Remove KGWE.

    Parameters
    ----------
    namespace
        Namespace of KGWE.
    release
        Name of the release.
    delete_kinds
        Also delete the kinds. This deletes every GPUWorkload and its pods, every budget and every policy.
    yes
        Confirm --delete-kinds.
    kubeconfig
        Path of the kubeconfig file.
    """
    if delete_kinds and not yes:
        raise errors.Permanent(
            "--delete-kinds deletes every GPUWorkload with its pods, every budget and every policy; confirm with --yes"
        )
    tool = _find_helm(kubeconfig)
    if any(each["name"] == release for each in tool.list_releases(namespace)):
        terminal.write(tool.run("uninstall", release, "--namespace", namespace))
    else:
        terminal.write(f"no release {release} in namespace {namespace}\n")
    if delete_kinds:
        asyncio.run(_delete_kinds(kubeconfig))


def _find_helm(kubeconfig: Path | None) -> helm.Helm:
    found = helm.ensure_helm(progress=progress.Lines())
    return helm.Helm(found.path, kubeconfig, major=helm.read_major(found.version))


async def _prepare(kubeconfig: Path | None, namespace: str) -> None:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-install") as client:
        await label_namespace(client, namespace)


async def _delete_kinds(kubeconfig: Path | None) -> None:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-install") as client:
        for name in (body["metadata"]["name"] for body in definitions.manifests()):
            with contextlib.suppress(errors.NotFound):
                await client.delete(resources.CRD, name)
                terminal.write(f"deleted {name}\n")
