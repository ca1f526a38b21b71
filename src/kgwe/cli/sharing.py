"""`kgwe sharing`: how one GPU is offered to several pods by NVIDIA's device plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from cyclopts import App, Parameter

from kgwe import errors
from kgwe.hardware.mps import control
from kgwe.model.units import amounts
from kgwe.sharing import timeslicing
from kgwe.sharing.mps import Client, client_environment
from kgwe.sharing.timeslicing import Method, Sharing

app = App(
    name="sharing",
    help="Print or check what GPUs shared by time-slicing or MPS need; changes nothing.",
    help_epilogue="""\
Examples:

  kgwe sharing timeslicing 4                  every GPU as 4 turns
  kgwe sharing timeslicing nvidia.com/gpu=4 nvidia.com/mig-1g.10gb=2 --rename
  kgwe sharing mps 8 --config-map gpu-sharing -n gpu-operator
  kgwe sharing check config.yaml              what the plugin makes of it
  kgwe sharing client GPU-… --threads 10      for a pod the agent's MPS serves
""",
    help_format="plaintext",
)

Output = Annotated[Literal["yaml", "json"], Parameter(name=["--output", "-o"])]
Namespace = Annotated[str, Parameter(name=["--namespace", "-n"])]
Flag = Annotated[bool, Parameter(negative="")]


@app.command(name="timeslicing")
def time_slicing(
    *resources: str,
    rename: Flag = False,
    allow_many: Flag = False,
    mig_strategy: Literal["", "none", "single", "mixed"] = "",
    config_map: str = "",
    key: str = "any",
    namespace: Namespace = "gpu-operator",
    output: Output = "yaml",
) -> None:
    """Configuration for GPUs whose pods take turns. Nothing limits the memory a pod takes.

    Parameters
    ----------
    resources
        RESOURCE=PIECES, or PIECES alone for nvidia.com/gpu.
    rename
        Offer the pieces as RESOURCE.shared, so that nobody shares by accident.
    allow_many
        Let a pod ask for several pieces. It gets no more of the GPU for them.
    mig_strategy
        The plugin's MIG strategy, if the configuration is to set it.
    config_map
        Print a ConfigMap of this name instead of the bare configuration.
    key
        Key in the ConfigMap; nodes choose it by their label nvidia.com/device-plugin.config.
    namespace
        Namespace of the ConfigMap.
    output
        yaml or json.
    """
    sharing = Sharing(
        _resources(resources), Method.TIME_SLICING, rename, refuses_many=not allow_many, mig_strategy=mig_strategy
    )
    _print(sharing, config_map, key, namespace, output)


@app.command
def mps(
    *resources: str,
    rename: Flag = False,
    allow_many: Flag = False,
    config_map: str = "",
    key: str = "any",
    namespace: Namespace = "gpu-operator",
    output: Output = "yaml",
) -> None:
    """Configuration for GPUs whose pods run side by side, each with an equal part of memory and threads.

    Parameters
    ----------
    resources
        RESOURCE=PIECES, or PIECES alone for nvidia.com/gpu.
    rename
        Offer the pieces as RESOURCE.shared, so that nobody shares by accident.
    allow_many
        Let a pod ask for several pieces.
    config_map
        Print a ConfigMap of this name instead of the bare configuration.
    key
        Key in the ConfigMap; nodes choose it by their label nvidia.com/device-plugin.config.
    namespace
        Namespace of the ConfigMap.
    output
        yaml or json.
    """
    sharing = Sharing(_resources(resources), Method.MPS, rename, refuses_many=not allow_many)
    _print(sharing, config_map, key, namespace, output)


@app.command
def client(
    uuid: str,
    *,
    threads: int | None = None,
    memory: int | None = None,
    directory: Path = Path("/run/kgwe/mps"),
    output: Output = "yaml",
) -> None:
    """What a pod needs to run on a GPU or MIG instance that the agent shares by MPS, as part of its manifest.

    Parameters
    ----------
    uuid
        Of the GPU or the MIG instance.
    threads
        Active thread percentage, if less than the daemon's.
    memory
        Memory limit in MiB, if less than the daemon's.
    directory
        Where the agent has its MPS daemons (mpsDirectory).
    output
        yaml or json.
    """
    control.check_unit(directory, uuid)
    pipe = str(control.MpsDirectories(directory, uuid).pipe)
    environment = client_environment(uuid, pipe, Client("", threads, memory))
    part = {
        "spec": {
            # The server and its clients meet in the host's shared memory.
            "hostIPC": True,
            "containers": [
                {
                    "name": "main",
                    "env": [{"name": name, "value": value} for name, value in environment.items()],
                    "volumeMounts": [{"name": "mps", "mountPath": pipe}],
                }
            ],
            "volumes": [{"name": "mps", "hostPath": {"path": pipe, "type": "Directory"}}],
        }
    }
    _write(part, output)


@app.command
def check(file: Path) -> None:
    """Say what the plugin would make of a configuration, or everything that is wrong with it.

    Parameters
    ----------
    file
        The configuration (not the ConfigMap around it); - reads standard input.
    """
    try:
        source = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as exc:
        raise errors.Permanent(f"reading {file}: {exc.strerror}") from exc
    sharing = timeslicing.parse_config(source)
    for name, _ in sharing.replicas:
        [(shown, count)] = timeslicing.offered_resources(sharing, {timeslicing.full_name(name): 1}).items()
        many = "" if sharing.refuses_many else "; a pod may ask for several"
        sys.stdout.write(f"{sharing.method}: every {name} is offered as {count} {shown}{many}\n")


def _resources(given: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    found = []
    for text in given:
        name, equals, pieces = text.rpartition("=")
        if not pieces.isdecimal() or (equals and not name):
            raise errors.Permanent(f"{text!r}: write RESOURCE=PIECES such as {amounts.GPU}=4, or 4 alone")
        found.append((name or amounts.GPU, int(pieces)))
    return tuple(found)


def _print(sharing: Sharing, config_map: str, key: str, namespace: str, output: str) -> None:
    made = timeslicing.build_document(sharing)
    if config_map:
        made = timeslicing.build_config_map({key: sharing}, name=config_map, namespace=namespace)
    _write(made, output)


def _write(made: dict[str, Any], output: str) -> None:
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(made)).decode() + "\n")
    else:
        yaml.add_representer(str, _readable, Dumper=yaml.SafeDumper)
        sys.stdout.write(yaml.safe_dump(made, sort_keys=False))


def _readable(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """A configuration inside a ConfigMap is a block of text, not one long line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)
