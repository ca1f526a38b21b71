"""What a node runs, in one file: written by `up`, read by the runner, the supervisor and later commands."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kgwe.errors import Permanent
from kgwe.local.node.addresses import Addresses

FILE = "node.json"


class Program(msgspec.Struct, frozen=True):
    """A process that runs as long as the node does; it is started again when it ends."""

    name: str
    argv: tuple[str, ...]
    log: str
    env: dict[str, str] = {}


class NodeSpec(msgspec.Struct, frozen=True):
    name: str
    #: directory of the cluster: the owner of all processes
    cluster: str
    slot: int
    cgroup: str
    #: port of the API server on the host
    api_port: int
    #: containerd; images are imported before the others start
    runtime: Program
    programs: tuple[Program, ...]
    ctr: str
    images: tuple[str, ...]
    model: str = ""
    gpus: int = 0

    @property
    def folder(self) -> Path:
        return node_folder(Path(self.cluster))

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.slot)


def node_folder(cluster: Path) -> Path:
    return cluster / "node"


def save(spec: NodeSpec) -> Path:
    path = spec.folder / FILE
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
    temporary.replace(path)
    return path


def load(path: Path) -> NodeSpec | None:
    """Return the node of a file; None if there is none, or an unreadable one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeSpec)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def load_from_arguments(arguments: list[str]) -> NodeSpec:
    spec = load(Path(arguments[0])) if arguments else None
    if spec is None:
        raise Permanent("the only argument is the path of a node's file, as `kgwe local node up` writes it")
    return spec
