"""Finds the folder with recorded data."""

from __future__ import annotations

import os
from pathlib import Path

from kgwe import errors


def find_folder(name: str, given: Path | None, *needed: str) -> Path:
    """Return the folder `name` of the data directory, or `given`, that holds the `needed` files.

    The data directory is $KGWE_DATA, or shared/data in the current directory or above.
    """
    named = os.environ.get("KGWE_DATA")
    if given is not None:
        places = [given, given / name]
    elif named:
        places = [Path(named) / name]
    else:
        places = [base / "shared" / "data" / name for base in (Path.cwd(), *Path.cwd().parents)]
    for place in places:
        if all((place / file).is_file() for file in needed):
            return place
    raise errors.NotFound(
        f"no {' and '.join(needed)} under {', '.join(map(str, places))}; name the folder with --data, or set KGWE_DATA"
        f" to the folder that holds {name}/"
    )
