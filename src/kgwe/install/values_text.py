"""values.yaml as a list of keys with their comments; the reference page is made from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kgwe import yaml_text


@dataclass(frozen=True, slots=True)
class Entry:
    """One key."""

    path: tuple[str, ...]
    about: str
    value: Any

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def is_group(self) -> bool:
        """Whether it holds other keys of the chart."""
        return isinstance(self.value, dict) and bool(self.value)


def parse_values(text: str) -> list[Entry]:
    """Return all keys in their order. The comment of a key is the lines of comments right above it."""
    tree = yaml_text.parse_yaml(text)
    found: list[Entry] = []
    stack: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
        elif ":" in stripped and not stripped.startswith("-"):
            stack = [each for each in stack if each[0] < indent]
            stack.append((indent, stripped.partition(":")[0]))
            path = tuple(name for _, name in stack)
            if not _is_inside(path, found):
                found.append(Entry(path, " ".join(comment), _look_up(tree, path)))
            comment = []
    return found


def _is_inside(path: tuple[str, ...], found: list[Entry]) -> bool:
    """Whether the key belongs to an object of Kubernetes, such as a label of a selector, and not to the chart."""
    return any(path[: len(each.path)] == each.path and each.about and len(path) > len(each.path) and _is_object(each)
               for each in found)  # fmt: skip


def _is_object(entry: Entry) -> bool:
    return entry.path[-1] in OBJECTS


#: keys whose values are objects of Kubernetes; what is in them is not described here
OBJECTS = frozenset({
    "resources", "nodeSelector", "tolerations", "affinity", "extraEnv", "extraVolumes", "extraVolumeMounts", "labels",
    "config", "settings", "prometheusNamespaceSelector", "clientNamespaceSelector", "serviceAccountAnnotations",
})  # fmt: skip


def _look_up(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def render_reference(text: str) -> str:
    """Return docs/reference/values.md."""
    lines = [
        "# Values of the chart",
        "",
        "Made from `charts/kgwe/values.yaml` by `make crds`. Helm refuses a key that is not listed, with its path.",
        "[install.md](../install.md) has examples.",
        "",
    ]
    for entry in parse_values(text):
        if len(entry.path) == 1:
            lines += ["", f"## {entry.dotted}", "", "| key | default | meaning |", "|---|---|---|"]
        elif entry.is_group and not _is_object(entry):
            continue
        else:
            default = json.dumps(entry.value, ensure_ascii=False)
            lines.append(f"| `{entry.dotted}` | `{default}` | {entry.about} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"
