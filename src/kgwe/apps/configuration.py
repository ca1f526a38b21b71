"""Settings of a process: one file, one tree; unknown keys are refused with their path.

Order of precedence: flag, environment (<PREFIX><KEY>, lists with commas), file, default.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kgwe import errors, text_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def load(
    kind: type[_Settings], prefix: str, path: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> _Settings:
    """Read the settings; raise Permanent with the path of the invalid key."""
    tree: dict[str, Any] = _read(path) if path is not None else {}
    for field in msgspec.structs.fields(kind):
        text = os.environ.get(prefix + field.name.upper())
        if text is not None:
            is_list = isinstance(field.default, tuple)
            tree[field.encode_name] = [each for each in text.split(",") if each] if is_list else text
        override = (overrides or {}).get(field.name)
        if override is not None:
            tree[field.encode_name] = override
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise errors.Permanent(f"settings{f' {path}' if path else ''}: {exc}") from exc


def _read(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - most processes have no file

    from kgwe import yaml_text  # noqa: PLC0415 - same

    try:
        tree = yaml_text.parse_yaml(text_files.read_text(path)) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise errors.Permanent(f"cannot read settings {path}: {exc}") from exc
    if not isinstance(tree, dict):
        raise errors.Permanent(f"settings {path}: expected a mapping of keys to values")
    return tree
