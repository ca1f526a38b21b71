"""`kgwe agent`: the process on every GPU node, and what can be asked of it."""

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

from kgwe import errors
from kgwe.cli.processes import agent_text

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kgwe.agentapi.client import AgentClient

T = TypeVar("T")

app = App(
    name="agent",
    help="""Publish the GPUs of this node, and cut and share them: the process on every GPU node.

Runs until SIGTERM or Ctrl-C. Without a driver it says so in the node's GPUNode and waits for one; without an API server
it keeps what it knows and publishes it later.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe agent                              in a cluster, as the DaemonSet of deploy/agent.yaml
  kgwe agent --standalone                 without a cluster: gRPC and metrics only
  kgwe agent discover                     what is in this machine, once, without a cluster
  KGWE_NVML_LIBRARY=/opt/libnvidia-ml.so.1 kgwe agent discover --json
  kgwe agent ping 127.0.0.1:50052         is it there, and well?
  kgwe agent watch 127.0.0.1:50052        utilisation, power and temperature as they come
  kgwe agent list                         every node of the cluster, and how fresh what is known of it is""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG", help="How to reach the API server.")]
Output = Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"], help="How to print it.")]
ListOutput = Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="The same as --output json.")]
Cert = Annotated[Path | None, Parameter(env_var="KGWE_AGENT_TLS_CERT_FILE", help="Certificate to show (PEM).")]
Key = Annotated[Path | None, Parameter(env_var="KGWE_AGENT_TLS_KEY_FILE", help="Its key (PEM).")]
Authority = Annotated[
    Path | None, Parameter(name="--ca", env_var="KGWE_AGENT_TLS_CA_FILE", help="Authority of the agents (PEM).")
]
ServerName = Annotated[
    str,
    Parameter(help="Name in the agents' certificates: the node's, or kgwe-agent where only an address is given."),
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
        Settings file (YAML); every key can also be given as KGWE_AGENT_<KEY>.
    node_name
        The Node it speaks for; else $NODE_NAME, else the host's name.
    standalone
        Without an API server.
    nvml_library
        The driver's library; else $KGWE_NVML_LIBRARY, else the one the system finds.
    grpc_bind_address
        Where gRPC is served, such as :50052; without certificates only on this machine.
    exporter_bind_address
        Where metrics are served, such as :9400.
    log_level
        debug, info, warning or error.
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
    settings.load(config, given)  # mistakes are told here, by the command that was typed
    env = dict(os.environ)
    env.update({f"{settings.ENV_PREFIX}{key.upper()}": str(value) for key, value in given.items() if value is not None})
    if config is not None:
        env[process.CONFIG_ENV] = str(config)
    if kubeconfig is not None:
        env["KUBECONFIG"] = str(kubeconfig)
    # The same process from here on, without the parser and all that came with it.
    os.execve(sys.executable, [sys.executable, "-m", "kgwe.apps.agent"], env)  # noqa: S606 - becomes the agent


@app.command(
    help_epilogue="""Examples:
  kgwe agent discover             cards, links and how they are joined
  kgwe agent discover --json      as the GPUNode's status, for programs
  kgwe agent discover -o yaml"""
)
def discover(
    *, output: Output = "table", json: Json = False, nvml_library: str | None = None, topology_file: str = ""
) -> int:
    """Show the GPUs of this machine, read once from the driver. Needs no cluster.

    Parameters
    ----------
    nvml_library
        The driver's library; else $KGWE_NVML_LIBRARY, else the one the system finds.
    topology_file
        Output of `nvidia-smi topo -m`, or NCCL XML, for what the driver does not tell of the wiring.
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
        _say(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    elif output == "yaml":
        _say(msgspec.yaml.encode(status).decode().rstrip())
    else:
        _say(agent_text.machine(machine, status))
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
    """Ask an agent whether it is there and well; exit code 1 when its driver does not answer.

    Parameters
    ----------
    address
        Where it listens, such as 10.0.0.7:50052.
    """

    async def ask() -> Any:
        async with _client(address, cert, key, ca, server_name) as client:
            return await client.ping()

    pong = _run(ask())
    _say(agent_text.pong(pong))
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
    """Show an agent's instruments as they come, until Ctrl-C.

    Parameters
    ----------
    address
        Where it listens, such as 10.0.0.7:50052.
    interval
        Seconds between two; 0: as often as the agent reads.
    count
        End after so many; 0: never.
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
                        _say(json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True))
                    else:
                        _say(agent_text.telemetry(message))
                    seen += 1
                    if seen == count:
                        return

    with contextlib.suppress(KeyboardInterrupt):
        _run(follow())
    return 0


@app.command(
    name="list",
    help_epilogue="""Examples:
  kgwe agent list                  what the GPUNodes say, and how old it is
  kgwe agent list --live           ask every agent itself
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
    """List the GPU nodes of the cluster and how fresh what is known of them is; exit code 1 when one is not.

    Parameters
    ----------
    live
        Ask every agent over gRPC as well.
    port
        Where agents listen.
    stale_after
        Seconds without a sign of its agent after which a node is called stale.
    """
    from kgwe.apps.discovery import fleet, freshness  # noqa: PLC0415
    from kgwe.kube.client.client import KubeClient  # noqa: PLC0415

    async def read() -> list[fleet.Row]:
        async with KubeClient.connect(kubeconfig) as client:
            access = _access(cert, key, ca, server_name) if live else None
            return await fleet.rows(client, dt.datetime.now(dt.UTC), stale_after, access=access, port=port)

    rows = _run(read())
    if output == "json":
        _say(msgspec.json.encode([row.facts() for row in rows]).decode())
    else:
        _say(agent_text.rows(rows))
    bad = [row for row in rows if not row.is_good]
    if bad and output == "table":
        stale = sum(row.seen.freshness is freshness.Freshness.STALE for row in bad)
        _say(f"{len(bad)} of {len(rows)} nodes cannot be relied on ({stale} stale).")
    return 1 if bad else 0


def _access(cert: Path | None, key: Path | None, ca: Path | None, server_name: str) -> Any:
    from kgwe.agentapi.client import Access  # noqa: PLC0415
    from kgwe.agentapi.tls import Files  # noqa: PLC0415

    if not (cert or key or ca):
        return Access(server_name=server_name)
    if not (cert and key and ca):
        raise errors.Permanent("--cert, --key and --ca go together: both sides show certificates")
    return Access(Files(cert, key, ca), server_name=server_name)


def _client(address: str, cert: Path | None, key: Path | None, ca: Path | None, server_name: str) -> AgentClient:
    from kgwe.agentapi.client import AgentClient  # noqa: PLC0415

    return AgentClient(address, _access(cert, key, ca, server_name))


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
