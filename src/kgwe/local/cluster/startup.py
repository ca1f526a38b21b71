"""Starts the components of a cluster and waits until they are ready.

    etcd → API server → role of kwok → controllers, scheduler, kwok side by side → default service account

A wait fails early, with the last lines of the log, if the process has exited.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from kgwe.errors import KgweError, Permanent, Transient
from kgwe.local.cluster import certificates, component_config, components, kubeconfig
from kgwe.local.host import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.local.cluster.admin_api import Api
    from kgwe.local.cluster.components import Component, Features, Layout
    from kgwe.local.host.processes import ProcessRecord
    from kgwe.local.toolchain.binaries import Binaries

_POLL_S = 0.05
_TAIL_LINES = 8


class PortTaken(Transient):
    """A component exited because another program listens on its port; other ports may work."""


def write_files(layout: Layout, *, context: str, server: str, scheduler_config: str | None) -> None:
    """Write kubeconfigs and component configurations; certificates must exist."""
    files = layout.certificates
    users = {
        layout.admin_kubeconfig: certificates.ADMIN,
        layout.kubeconfig(components.CONTROLLER_MANAGER): certificates.CONTROLLER_MANAGER,
        layout.kubeconfig(components.SCHEDULER): certificates.SCHEDULER,
        layout.kubeconfig(components.KWOK): certificates.KWOK,
    }
    for path, identity in users.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        kubeconfig.write_kubeconfig(
            path,
            context=context,
            server=server,
            authority=files.authority,
            user_name=identity.user,
            user=kubeconfig.certificate_user(files.pair(identity)),
        )
    contents = {
        "audit-policy.yaml": component_config.audit_policy(),
        "admission.yaml": component_config.admission_configuration(layout.setting("webhooks.yaml")),
        "webhooks.yaml": component_config.webhooks_kubeconfig(files.pair(certificates.SERVER)),
        "scheduler.yaml": component_config.scheduler_configuration(
            scheduler_config, kubeconfig=layout.kubeconfig(components.SCHEDULER)
        ),
        "kwok.yaml": component_config.kwok_configuration(),
    }
    for file, text in contents.items():
        path = layout.setting(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    layout.audit_log.parent.mkdir(parents=True, exist_ok=True)


def start_components(
    api: Api,
    layout: Layout,
    ports: Mapping[str, int],
    binaries: Binaries,
    *,
    features: Features,
    launch: Callable[[Component], ProcessRecord],
    timeout_s: float,
) -> None:
    """Start all components in order; `launch` starts one process and records it."""
    deadline = time.monotonic() + timeout_s

    def start(name: str) -> ProcessRecord:
        return launch(components.build_component(name, layout, ports, binaries, features))

    for name in (components.ETCD, components.APISERVER):
        await_healthy(api, start(name), components.health_url(name, ports), deadline)
    api.apply_kwok_role()
    rest = (components.CONTROLLER_MANAGER, components.SCHEDULER, components.KWOK)
    for record in [start(name) for name in rest]:
        await_healthy(api, record, components.health_url(record.name, ports), deadline)
    await_service_account(api, deadline)


def await_healthy(api: Api, record: ProcessRecord, url: str, deadline: float) -> None:
    """Wait until the component reports healthy."""
    while not api.is_healthy(url):
        if not processes.is_alive(record):
            raise _explain_exit(record)
        if time.monotonic() > deadline:
            raise Transient(
                f"{record.name} did not become ready in time. Last lines of {record.log}:\n"
                f"{read_tail(Path(record.log))}"
            )
        time.sleep(_POLL_S)


def _explain_exit(record: ProcessRecord) -> KgweError:
    tail = read_tail(Path(record.log))
    message = f"{record.name} exited while starting. Last lines of {record.log}:\n{tail}"
    # The words of Go's net package, which all components use.
    return PortTaken(message) if "address already in use" in tail else Permanent(message)


def await_service_account(api: Api, deadline: float, namespace: str = "default") -> None:
    """Wait until pods can be created: admission refuses them until the default service account exists."""
    while not _is_there(api, f"/api/v1/namespaces/{namespace}/serviceaccounts/default"):
        if time.monotonic() > deadline:
            raise Transient(
                "kube-controller-manager creates no service accounts; see `kgwe local logs kube-controller-manager`"
            )
        time.sleep(_POLL_S)


def _is_there(api: Api, path: str) -> bool:
    """Whether the object exists; no, as long as the API server does not say so."""
    try:
        return api.exists(path)
    except Transient:
        return False


def read_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "    (no log)"
    return "\n".join(f"    {line[:400]}" for line in text.splitlines()[-lines:]) or "    (empty log)"
