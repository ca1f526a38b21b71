"""Files shipped with KGWE: from the checkout if there is one, else from the installed package."""

from __future__ import annotations

from pathlib import Path

from kgwe import errors

_HERE = Path(__file__).parent
# A checkout has src/kgwe/local/host/assets.py with deploy/ and examples/ beside src/; a wheel has kgwe/local/assets/.
_ROOTS = (_HERE.parents[3], _HERE.parent / "assets")


def find_asset(name: str) -> Path:
    """Return the file or directory `name`, such as `deploy/rbac.yaml`."""
    for root in _ROOTS:
        if (root / name).exists():
            return root / name
    raise errors.Permanent(f"{name} is missing from this installation; reinstall KGWE")
