"""`kgwe agent`: runs the agent of a GPU node, and queries running agents."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.cli.processes import agent_text

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kgwe.agentapi.client import AgentClient

T = TypeVar("T")

app = App(
    name="agent",
    help="""Publish, partition and share the GPUs of this node. Runs on every GPU node.

Runs until SIGTERM or Ctrl-C. If the driver is missing, the agent reports it in the GPUNode and waits for the driver. If
the API server is unavailable, the agent publishes its data later.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe agent                              in a cluster, as the DaemonSet of deploy/agent.yaml
  kgwe agent --standalone                 without a cluster: gRPC and metrics only
  kgwe agent discover                     print the GPUs of this machine; needs no cluster
  KGWE_NVML_LIBRARY=/opt/libnvidia-ml.so.1 kgwe agent discover --json
  kgwe agent ping 127.0.0.1:50052         check that an agent runs and is healthy
  kgwe agent watch 127.0.0.1:50052        follow utilization, power and temperature
  kgwe agent list                         list all GPU nodes and the age of their data""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG", help="Path of the kubeconfig.")]
Output = Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"], help="Output format.")]
ListOutput = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Same as --output json.")]
Cert = Annotated[Path | None, Parameter(env_var="KGWE_AGENT_TLS_CERT_FILE", help="Client certificate (PEM).")]
Key = Annotated[Path | None, Parameter(env_var="KGWE_AGENT_TLS_KEY_FILE", help="Key of the client certificate (PEM).")]
Authority = Annotated[
    Path | None,
    Parameter(name="--ca", env_var="KGWE_AGENT_TLS_CA_FILE", help="Certificate authority of the agents (PEM)."),
]
ServerName = Annotated[
    str,
    Parameter(
        help="Server name in the agents' certificates. Default: the node name, or kgwe-agent for a bare address."
    ),
]


@app.default
def run(
    *,
    kubeconfig: Kubeconfig = None,
    config: Path | None = None,
    node_name: str | None = None,
    standalone: bool | None = None,
    nvml_library: str | None = None,
    grpc_bind_address: str | None = None,
    exporter_bind_address: str | None = None,
    log_level: str | None = None,
) -> None:
    """Run the agent.

    Parameters
    ----------
    config
        Settings file (YAML). Each key can also be set as KGWE_AGENT_<KEY>.
    node_name
        Name of the Node. Default: $NODE_NAME, then the host name.
    standalone
        Run without an API server.
    nvml_library
        Path of the NVML library. Default: $KGWE_NVML_LIBRARY, then the system's library.
    grpc_bind_address
        gRPC address, such as :50052. Without certificates only loopback addresses are allowed.
    exporter_bind_address
        Metrics address, such as :9400.
    log_level
                        Log level: debug, info, warning or error.
    """
    from kgwe.apps.agent import __main__ as process  # noqa: PLC0415 - the other commands do without it
    from kgwe.apps.agent import settings  # noqa: PLC0415

    given = {
        "node_name": node_name,
        "standalone": standalone,
        "nvml_library": nvml_library,
        "grpc_bind_address": grpc_bind_address,
        "exporter_bind_address": exporter_bind_address,
        "log_level": log_level,
    }
    settings.load(config, given)  # report configuration errors here, in the command the user typed
    env = dict(os.environ)
    env.update({f"{settings.ENV_PREFIX}{key.upper()}": str(value) for key, value in given.items() if value is not None})
    if config is not None:
        env[process.CONFIG_ENV] = str(config)
    if kubeconfig is not None:
        env["KUBECONFIG"] = str(kubeconfig)
    # Replace the process image, which drops the argument parser and its memory.
    os.execve(sys.executable, [sys.executable, "-m", "kgwe.apps.agent"], env)  # noqa: S606 - becomes the agent


@app.command(
    help_epilogue="""Examples:
  kgwe agent discover             GPUs, links and topology
  kgwe agent discover --json      the status of a GPUNode, as JSON
  kgwe agent discover -o yaml"""
)
def discover(
    *, output: Output = "table", json: Json = False, nvml_library: str | None = None, topology_file: str = ""
) -> int:
    """Show the GPUs of this machine as the driver reports them. Needs no cluster.

    Parameters
    ----------
    nvml_library
        Path of the NVML library. Default: $KGWE_NVML_LIBRARY, then the system's library.
    topology_file
        Output of `nvidia-smi topo -m`, or NCCL XML; completes the topology that the driver reports.
    """
    from kgwe.apps.agent import main as process  # noqa: PLC0415
    from kgwe.apps.agent import settings  # noqa: PLC0415
    from kgwe.apps.agent.status import gpunode_status  # noqa: PLC0415
    from kgwe.apps.agent.status import topology_file as described  # noqa: PLC0415

    loaded = settings.load(None, {"nvml_library": nvml_library})

    async def read() -> Any:
        driver = await process.open_nvml(loaded)()
        try:
            return await driver.machine()
        finally:
            await driver.close()

    file = described.TopologyFile(topology_file)
    machine = file.complete(_run(read()))
    if file.problem:
        raise errors.Permanent(file.problem)
    status = gpunode_status.build_status(machine)
    if json or output == "json":
        _print(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    elif output == "yaml":
        _print(msgspec.yaml.encode(status).decode().rstrip())
    else:
        _print(agent_text.machine(machine, status))
    return 0


@app.command
def ping(
    address: str,
    /,
    *,
    cert: Cert = None,
    key: Key = None,
    ca: Authority = None,
    server_name: ServerName = "",
) -> int:
    """Check that an agent runs and is healthy. Exit code 1 if its driver does not respond.

    Parameters
    ----------
    address
        Address of the agent, such as 10.0.0.7:50052.
    """

    async def ask() -> Any:
        async with _client(address, cert, key, ca, server_name) as client:
            return await client.ping()

    pong = _run(ask())
    _print(agent_text.pong(pong))
    return 0 if pong.driver_ready else 1


@app.command
def watch(
    address: str,
    /,
    *,
    interval: float = 0.0,
    count: int = 0,
    json: Json = False,
    cert: Cert = None,
    key: Key = None,
    ca: Authority = None,
    server_name: ServerName = "",
) -> int:
    """Follow the GPU readings of an agent until Ctrl-C.

    Parameters
    ----------
    address
        Address of the agent, such as 10.0.0.7:50052.
    interval
        Seconds between two samples; 0 means the agent's own interval.
    count
        Number of samples to print; 0 means no limit.
    """
    from google.protobuf import json_format  # noqa: PLC0415

    from kgwe.proto import agent_pb2 as pb  # noqa: PLC0415

    async def follow() -> None:
        seen = 0
        async with _client(address, cert, key, ca, server_name) as client:
            told = client.telemetry(pb.TelemetryRequest(interval_s=interval))
            async with contextlib.aclosing(told) as messages:
                async for message in messages:
                    if json:
                        _print(json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True))
                    else:
                        _print(agent_text.telemetry(message))
                    seen += 1
                    if seen == count:
                        return

    with contextlib.suppress(KeyboardInterrupt):
        _run(follow())
    return 0


@app.command(
    name="list",
    help_epilogue="""Examples:
  kgwe agent list                  list GPUNodes and the age of their data
  kgwe agent list --live           query every agent over gRPC
  kgwe agent list -o json""",
)
def list_nodes(
    *,
    kubeconfig: Kubeconfig = None,
    live: bool = False,
    port: int = 50052,
    stale_after: float = 900.0,
    output: ListOutput = "table",
    cert: Cert = None,
    key: Key = None,
    ca: Authority = None,
    server_name: ServerName = "",
) -> int:
    """List the GPU nodes of the cluster and the age of their data. Exit code 1 if a node is stale or not ready.

    Parameters
    ----------
    live
        Also query every agent over gRPC.
    port
        gRPC port of the agents.
    stale_after
        Seconds without an update after which a node is stale.
    """
    from kgwe.apps.discovery import fleet, freshness  # noqa: PLC0415
    from kgwe.kube.client.client import KubeClient  # noqa: PLC0415

    async def read() -> list[fleet.Row]:
        async with KubeClient.connect(kubeconfig) as client:
            access = _read_tls_files(cert, key, ca, server_name) if live else None
            return await fleet.rows(client, dt.datetime.now(dt.UTC), stale_after, access=access, port=port)

    rows = _run(read())
    if output == "json":
        _print(msgspec.json.encode([row.facts() for row in rows]).decode())
    else:
        _print(agent_text.rows(rows))
    bad = [row for row in rows if not row.is_good]
    if bad and output == "table":
        stale = sum(row.seen.freshness is freshness.Freshness.STALE for row in bad)
        _print(f"{len(bad)} of {len(rows)} nodes are not ready ({stale} stale).")
    return 1 if bad else 0


def _read_tls_files(cert: Path | None, key: Path | None, ca: Path | None, server_name: str) -> Any:
    from kgwe.agentapi.client import Access  # noqa: PLC0415
    from kgwe.rpc.tls import Files  # noqa: PLC0415

    if not (cert or key or ca):
        return Access(server_name=server_name)
    if not (cert and key and ca):
        raise errors.Permanent("--cert, --key and --ca must be given together")
    return Access(Files(cert, key, ca), server_name=server_name)


def _client(address: str, cert: Path | None, key: Path | None, ca: Path | None, server_name: str) -> AgentClient:
    from kgwe.agentapi.client import AgentClient  # noqa: PLC0415

    return AgentClient(address, _read_tls_files(cert, key, ca, server_name))


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _print(text: str) -> None:
    terminal.write(text + "\n")
    sys.stdout.flush()
