"""`kgwe image`: build container images without a container engine, push them, and write their Dockerfile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe import errors, terminal, text_files
from kgwe.images import builder, dockerfile, recipe
from kgwe.images.layout import Layout
from kgwe.images.registry import Reference, Registry
from kgwe.local.host import progress

DOCKERFILE = Path("images/Dockerfile")
_MIB = 1 << 20

app = App(
    name="image",
    help="Build and push the container images of KGWE.",
    help_epilogue="""\
Examples:

  kgwe image build kgwe                                    dist/kgwe.oci.tar for amd64 and arm64
  kgwe image build kgwe-agent --architecture amd64
  kgwe image push dist/kgwe.oci.tar registry.example.com/kgwe:0.1.0
  ctr -n k8s.io images import dist/kgwe.oci.tar            load it into containerd on a node
  kgwe image dockerfile --check                            check images/Dockerfile against the recipes
""",
    help_format="plaintext",
)


@app.command
def build(
    name: str = "kgwe",
    *,
    architecture: Annotated[tuple[str, ...], Parameter(negative="")] = recipe.ARCHITECTURES,
    output: Annotated[Path | None, Parameter(negative="")] = None,
    registry: str = "",
    source: Path = Path(),
) -> None:
    """Build an image from Debian packages and wheels as one OCI layout.

    Parameters
    ----------
    name
        The image: kgwe (all processes of the control plane) or kgwe-agent.
    architecture
        amd64 or arm64. Default: both.
    output
        The file to write. Default: dist/NAME.oci.tar.
    registry
        Prefix of the image's name, such as registry.example.com/team.
    source
        The checkout of KGWE. Default: the current directory.
    """
    chosen = recipe.find_recipe(name)
    target = output or Path("dist") / f"{chosen.name}.oci.tar"
    built = builder.build_image(
        chosen, architecture, source=source, target=target, registry=registry, progress=progress.Lines()
    )
    terminal.write(f"{built.reference} ({built.digest}) in {built.path}\n")
    for each, layers in built.sizes.items():
        parts = ", ".join(f"{title} {size / _MIB:.1f} MiB" for title, size in layers.items())
        terminal.write(f"  {each}: {sum(layers.values()) / _MIB:.1f} MiB compressed ({parts})\n")


@app.command
def push(image: Path, reference: str, *, plain_http: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Push an OCI layout to a registry, with all architectures.

    Parameters
    ----------
    image
        A file that `kgwe image build` wrote.
    reference
        The full name, such as registry.example.com/kgwe:0.1.0. Credentials are read from KGWE_REGISTRY_USER and
        KGWE_REGISTRY_PASSWORD.
    plain_http
        Use HTTP instead of HTTPS, for a registry on this machine.
    """
    user, password = os.environ.get("KGWE_REGISTRY_USER", ""), os.environ.get("KGWE_REGISTRY_PASSWORD", "")
    named = Reference.parse(reference)
    with Layout(image) as found, Registry(named, user=user, password=password, plain_http=plain_http) as target:
        pushed = target.push(found)
    terminal.write(f"{pushed.reference}@{pushed.digest}: {pushed.sent} blobs sent, {pushed.skipped} already there\n")


@app.command(name="dockerfile")
def write_dockerfile(*, output: Path = DOCKERFILE, check: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Write the Dockerfile from the recipes, or check it.

    Parameters
    ----------
    output
        The file to write or check.
    check
        Fail if the file differs from the recipes; write nothing.
    """
    text = dockerfile.render()
    if not check:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
        return
    try:
        found = text_files.read_text(output)
    except OSError as exc:
        raise errors.Permanent(f"cannot read {output}: {exc.strerror}. Run: kgwe image dockerfile") from exc
    if found != text:
        raise errors.Permanent(f"{output} is out of date. Run: kgwe image dockerfile")
    terminal.write(f"{output} is up to date\n")
