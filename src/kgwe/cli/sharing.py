"""`kgwe sharing`: configures how NVIDIA's device plugin shares one GPU among several pods."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from cyclopts import App, Parameter

from kgwe import errors, terminal, text_files
from kgwe.hardware.mps import control
from kgwe.model.units import amounts
from kgwe.sharing import timeslicing
from kgwe.sharing.mps import Client, client_environment
from kgwe.sharing.timeslicing import Method, Sharing

app = App(
    name="sharing",
    help="Print or check the device plugin's configuration for time-slicing or MPS. Changes nothing.",
    help_epilogue="""\
Examples:

  kgwe sharing timeslicing 4                  time-slice each GPU among 4 pods
  kgwe sharing timeslicing nvidia.com/gpu=4 nvidia.com/mig-1g.10gb=2 --rename
  kgwe sharing mps 8 --config-map gpu-sharing -n gpu-operator
  kgwe sharing check config.yaml              validate a configuration
  kgwe sharing client GPU-… --threads 10      pod settings for an MPS daemon of the agent
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
    """Print the configuration for time-slicing. Time-slicing does not limit the memory of a pod.

    Parameters
    ----------
    resources
        RESOURCE=SHARES, or SHARES alone for nvidia.com/gpu.
    rename
        Advertise the shares as RESOURCE.shared, so that no pod gets a share by accident.
    allow_many
        Allow a pod to request several shares. It gets no more GPU time for them.
    mig_strategy
        MIG strategy of the plugin. Default: not set.
    config_map
        Print a ConfigMap with this name instead of the bare configuration.
    key
        Key in the ConfigMap; nodes select it with the label nvidia.com/device-plugin.config.
    namespace
        Namespace of the ConfigMap.
    output
        yaml or json.
    """
    sharing = Sharing(
        _parse_resources(resources), Method.TIME_SLICING, rename, refuses_many=not allow_many, mig_strategy=mig_strategy
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
    """Print the configuration for MPS: pods run concurrently, each with an equal part of memory and threads.

    Parameters
    ----------
    resources
        RESOURCE=SHARES, or SHARES alone for nvidia.com/gpu.
    rename
        Advertise the shares as RESOURCE.shared, so that no pod gets a share by accident.
    allow_many
        Allow a pod to request several shares.
    config_map
        Print a ConfigMap with this name instead of the bare configuration.
    key
        Key in the ConfigMap; nodes select it with the label nvidia.com/device-plugin.config.
    namespace
        Namespace of the ConfigMap.
    output
        yaml or json.
    """
    sharing = Sharing(_parse_resources(resources), Method.MPS, rename, refuses_many=not allow_many)
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
    """Print the part of a pod manifest that uses a GPU or MIG slice shared by the agent's MPS.

    Parameters
    ----------
    uuid
        UUID of the GPU or MIG slice.
    threads
        Active thread percentage, if lower than the daemon's.
    memory
        Memory limit in MiB, if lower than the daemon's.
    directory
        Directory of the agent's MPS daemons (mpsDirectory).
    output
        yaml or json.
    """
    control.check_unit(directory, uuid)
    pipe = str(control.MpsDirectories(directory, uuid).pipe)
    environment = client_environment(uuid, pipe, Client("", threads, memory))
    part = {
        "spec": {
            # The MPS server and its clients communicate through the host's shared memory.
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
    """Validate a configuration: print what the plugin will advertise, or all errors.

    Parameters
    ----------
    file
        Configuration file (not the ConfigMap around it); - reads standard input.
    """
    try:
        is_stdin = str(file) == "-"
        source = text_files.read_stream(sys.stdin, "standard input") if is_stdin else text_files.read_text(file)
    except OSError as exc:
        raise errors.Permanent(f"cannot read {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise errors.Permanent(f"{file} is not text; expected the YAML of a sharing configuration") from exc
    sharing = timeslicing.parse_config(source)
    for name, _ in sharing.replicas:
        [(shown, count)] = timeslicing.offered_resources(sharing, {timeslicing.full_name(name): 1}).items()
        many = "" if sharing.refuses_many else "; a pod may request several"
        terminal.write(f"{sharing.method}: each {name} is advertised as {count} {shown}{many}\n")


def _parse_resources(given: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    found = []
    for text in given:
        name, equals, pieces = text.rpartition("=")
        if not pieces.isdecimal() or (equals and not name):
            raise errors.Permanent(f"{text!r}: expected RESOURCE=SHARES such as {amounts.GPU}=4, or just 4")
        found.append((name or amounts.GPU, int(pieces)))
    return tuple(found)


def _print(sharing: Sharing, config_map: str, key: str, namespace: str, output: str) -> None:
    made = timeslicing.build_document(sharing)
    if config_map:
        made = timeslicing.build_config_map({key: sharing}, name=config_map, namespace=namespace)
    _write(made, output)


def _write(made: dict[str, Any], output: str) -> None:
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(made)).decode() + "\n")
    else:
        yaml.add_representer(str, _as_block_text, Dumper=yaml.SafeDumper)
        terminal.write(yaml.safe_dump(made, sort_keys=False))


def _as_block_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Return the configuration with line breaks kept, so that a ConfigMap shows it as a block of text."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)
