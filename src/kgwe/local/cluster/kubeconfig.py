"""Kubeconfig files with inline certificates, readable by their owner only."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.local.cluster.certificates import Pair


def certificate_user(pair: Pair) -> dict[str, Any]:
    return {"client-certificate-data": _encode_file(pair.certificate), "client-key-data": _encode_file(pair.key)}


def token_user(token: str) -> dict[str, Any]:
    return {"token": token}


def write_kubeconfig(
    path: Path,
    *,
    context: str,
    server: str,
    authority: Path,
    user_name: str,
    user: dict[str, Any],
    namespace: str = "default",
) -> Path:
    """Write a kubeconfig with one cluster, one user and one context."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": _encode_file(authority)}}
        ],
        "users": [{"name": user_name, "user": user}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": user_name, "namespace": namespace}},
        ],
        "current-context": context,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        yaml.safe_dump(document, stream, sort_keys=False)
    temporary.replace(path)
    return path


def _encode_file(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
