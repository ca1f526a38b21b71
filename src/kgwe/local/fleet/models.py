"""Finds fleet models: by path, or by the name of a built-in model.

The models are in `models/` of the repository and inside the installed package. The directory of a checkout comes
first, so that edits take effect.
"""

from __future__ import annotations

from pathlib import Path

from kgwe import errors, text_files
from kgwe.model.simfleet import model_file

_HERE = Path(__file__).parent
# A checkout has src/kgwe/local/fleet/models.py and models/ beside src/; a wheel has kgwe/local/models/.
_DIRECTORIES = (_HERE.parents[3] / "models", _HERE.parent / "models")


def list_names() -> list[str]:
    """Return the names of the built-in models."""
    return sorted(path.stem for path in _find_directory().glob("*.yaml"))


def load(name: str) -> model_file.Fleet:
    """Load the fleet of a file (`models/mixed.yaml`, `./mine.yaml`) or of a model name (`mixed`)."""
    path = find(name)
    return model_file.parse(_read(path), where=str(path), include=lambda other: _read(find(other, beside=path.parent)))


def find(name: str, beside: Path | None = None) -> Path:
    """Return the file of a model. The directory `beside` comes first, for models that include each other."""
    given = Path(name)
    candidates = [given, _find_directory() / f"{given.stem if given.parent == Path('models') else name}.yaml"]
    if beside is not None:
        candidates.insert(0, beside / f"{name}.yaml")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise errors.Permanent(f"no fleet model {name!r}; expected the path of a file or one of {', '.join(list_names())}")


def _find_directory() -> Path:
    for directory in _DIRECTORIES:
        if directory.is_dir() and any(directory.glob("*.yaml")):
            return directory
    raise errors.Permanent(f"no fleet models in {' or '.join(map(str, _DIRECTORIES))}; reinstall KGWE")


def _read(path: Path) -> str:
    try:
        return text_files.read_text(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.Permanent(f"cannot read the fleet model: {exc}") from exc
