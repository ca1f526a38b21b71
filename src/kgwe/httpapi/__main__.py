"""Writes or checks the OpenAPI document: `python -m kgwe.httpapi FILE [--check]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.httpapi.cost_api import make_cost_api

if TYPE_CHECKING:
    from kgwe.httpapi.cost_reader import LedgerAccess


def make_document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
    nothing: Any = None
    return make_cost_api(_open_nothing, dict, nothing, nothing).document


def _open_nothing() -> LedgerAccess:
    raise errors.Transient("there is no ledger")


def main(arguments: list[str]) -> int:
    """Write the document, or compare it with the file."""
    path = Path(arguments[0])
    text = json.dumps(make_document(), indent=1) + "\n"
    if "--check" not in arguments:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{path} is outdated: run `make crds`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
