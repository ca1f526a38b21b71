"""Where fleet models are found: a path, or the name of one that comes with KGWE.

The models lie in `models/` of the repository and inside the installed package; a checkout wins, so that an
edit there takes effect.
"""

from __future__ import annotations

from pathlib import Path

from kgwe import errors
from kgwe.model.simfleet import model_file

_HERE = Path(__file__).parent
# A checkout has src/kgwe/local/fleet/models.py and models/ beside src/; a wheel has kgwe/local/models/.
_DIRECTORIES = (_HERE.parents[3] / "models", _HERE.parent / "models")


def names() -> list[str]:
    """The models that come with KGWE."""
    return sorted(path.stem for path in _directory().glob("*.yaml"))


def load(name: str) -> model_file.Fleet:
    """The fleet of a file (`models/mixed.yaml`, `./mine.yaml`) or of a model's name (`mixed`)."""
    path = find(name)
    return model_file.parse(_read(path), where=str(path), include=lambda other: _read(find(other, beside=path.parent)))


def find(name: str, beside: Path | None = None) -> Path:
    """The file of a model; `beside` is looked at first, for models that include each other."""
    given = Path(name)
    candidates = [given, _directory() / f"{given.stem if given.parent == Path('models') else name}.yaml"]
    if beside is not None:
        candidates.insert(0, beside / f"{name}.yaml")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise errors.Permanent(f"no fleet model {name!r}: give the path of a file or one of {', '.join(names())}")


def _directory() -> Path:
    for directory in _DIRECTORIES:
        if directory.is_dir() and any(directory.glob("*.yaml")):
            return directory
    raise errors.Permanent(f"no fleet models in {' or '.join(map(str, _DIRECTORIES))}: install KGWE again")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise errors.Permanent(f"reading fleet model: {exc}") from exc
