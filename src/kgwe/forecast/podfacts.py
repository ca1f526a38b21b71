"""What the spec of a pod says about its work, and a case-insensitive search in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The parts of a pod and its owner that say what it does; empty is unknown."""

    image: str = ""
    command: tuple[str, ...] = ()
    """Command and arguments of the container that holds the GPU."""
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    port_names: tuple[str, ...] = ()
    owner_kind: str = ""
    """Of the outermost owner, such as `Deployment`."""
    framework: str = ""
    """As the workload declares it, such as `PyTorch`."""
    replicas: int | None = None
    has_probe: bool = False
    """Whether it has a readiness or liveness probe over HTTP, gRPC or TCP."""

    @property
    def text(self) -> str:
        """Return image and command in lower case, for a search."""
        return " ".join((self.image, *self.command)).lower()

    def find_word(self, words: str) -> str:
        """Return the first of the words (`a|b|c`) that image or command contain as a whole word; empty if none."""
        match = re.search(rf"(?<![a-z0-9])(?:{words})(?![a-z0-9])", self.text)
        return match[0] if match else ""

    def read_argument(self, name: str) -> str | None:
        """Return the value of `--name value` or `--name=value`; None if it is not given."""
        for position, word in enumerate(self.command):
            if word == name:
                return self.command[position + 1] if position + 1 < len(self.command) else ""
            if word.startswith(f"{name}="):
                return word[len(name) + 1 :]
        return None
