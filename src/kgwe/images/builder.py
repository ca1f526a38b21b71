"""Builds an image: a layer of Debian packages, one of Python packages, and one of KGWE, for each architecture."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from kgwe import errors
from kgwe.images import debian, wheels
from kgwe.images import recipe as recipes
from kgwe.images.files import write_layer
from kgwe.images.layout import Label, Platform, write_layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from kgwe.images.files import Layer
    from kgwe.images.recipe import Recipe

_PACKAGE_LIST: Final = "usr/share/kgwe/debian-packages.txt"


class Step(Protocol):
    def update(self, detail: str) -> None:
        """Show what the step does now."""


class Progress(Protocol):
    def step(self, title: str) -> AbstractContextManager[Step]:
        """Show a step of the build."""


@dataclass(frozen=True, slots=True)
class Built:
    """An image on disk."""

    path: Path
    reference: str
    digest: str
    sizes: dict[str, dict[str, int]]
    """Architecture -> layer -> compressed bytes."""


def build_image(
    recipe: Recipe, architectures: Sequence[str], *, source: Path, target: Path, registry: str, progress: Progress
) -> Built:
    """Build the image of a checkout and write it to `target` as one OCI layout."""
    for architecture in architectures:
        if architecture not in recipes.ARCHITECTURES:
            raise errors.Permanent(f"no image for {architecture!r}; architectures: {', '.join(recipes.ARCHITECTURES)}")
    label = _read_label(source)
    epoch = int(datetime.fromisoformat(label.created).timestamp())
    reference = f"{registry.rstrip('/') + '/' if registry else ''}{recipe.name}:{label.version}"
    with tempfile.TemporaryDirectory(prefix="kgwe-image-") as folder:
        work = Path(folder)
        with progress.step("Building the wheel of KGWE"):
            wheel = wheels.build_wheel(source, work / "wheel")
        platforms = [
            _build_platform(
                recipe,
                architecture,
                source=source,
                wheel=wheel,
                work=work / architecture,
                epoch=epoch,
                progress=progress,
            )
            for architecture in architectures
        ]
        with progress.step(f"Writing {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            digest = write_layout(recipe, platforms, label, reference, part)
            part.replace(target)
    sizes = {each.architecture: {layer.title: layer.size for layer in each.layers} for each in platforms}
    return Built(target, reference, digest, sizes)


def _build_platform(
    recipe: Recipe, architecture: str, *, source: Path, wheel: Path, work: Path, epoch: int, progress: Progress
) -> Platform:
    roots = {name: work / name for name in ("base", "python", "kgwe")}
    for root in roots.values():
        root.mkdir(parents=True)
    with progress.step(f"Debian packages for {architecture}"):
        packages = debian.build_base(recipe, architecture, roots["base"], work / "apt")
        listed = roots["base"] / _PACKAGE_LIST
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{package}\n" for package in packages))
    with progress.step(f"Python packages for {architecture}"):
        wheels.install_requirements(recipe, architecture, source, roots["python"])
    with progress.step(f"Layers for {architecture}"):
        wheels.install_kgwe(wheel, roots["kgwe"])
        for root in roots.values():
            wheels.compile_bytecode(root)
        titles = {"base": "Debian packages", "python": "Python packages", "kgwe": "KGWE"}
        layers: list[Layer] = []
        for name, root in roots.items():
            layers.append(write_layer(root, work / f"{name}.tar.gz", epoch, titles[name]))
            shutil.rmtree(root)
    return Platform(architecture, tuple(layers))


def _read_label(source: Path) -> Label:
    """Version and commit of the checkout. Without git, the revision is empty and the time is 1970."""
    revision = _git(source, "rev-parse", "HEAD")
    moment = _git(source, "show", "--no-patch", "--format=%ct", "HEAD") or "0"
    created = datetime.fromtimestamp(int(moment), UTC).isoformat().replace("+00:00", "Z")
    return Label(version("kgwe"), revision, created)


def _git(source: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=source, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
