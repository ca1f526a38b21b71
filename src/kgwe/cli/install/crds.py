"""`kgwe crds`: print, write or check the CustomResourceDefinitions and their reference page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.kube.crd import definitions, reference_docs

if TYPE_CHECKING:
    from kgwe.kube.api import schema

CRD_DIRECTORY = Path("deploy/crds")
DOCS_DIRECTORY = Path("docs/reference")
DOCS_FILE = "api.md"

app = App(
    name="crds",
    help="Print, write or check the CustomResourceDefinitions of KGWE's kinds.",
    help_epilogue="""\
Examples:

  kgwe crds | kubectl apply --server-side -f -   install every kind
  kgwe crds gw MIGStrategy                       print two of them
  kgwe crds --output deploy/crds                 write one file per kind
  kgwe crds --check                              check that the files are up to date
  kgwe crds --docs --output docs/reference       write api.md
""",
    help_format="plaintext",
)


@app.default
def run(
    *kinds: str,
    output: Annotated[Path | None, Parameter(negative="")] = None,
    check: Annotated[bool, Parameter(negative="")] = False,
    docs: Annotated[bool, Parameter(negative="")] = False,
    format: Annotated[  # noqa: A002 # the option's name
        Literal["yaml", "json"], Parameter(name=["--format", "-o"])
    ] = "yaml",
) -> None:
    """Print, write or check the CustomResourceDefinitions of KGWE's kinds.

    Parameters
    ----------
    kinds
        Kinds, plurals, short names or full names (gpuworkloads.gpu.warp.dev). Default: all kinds.
    output
        Write files into this directory instead of printing.
    check
        Fail if the files in the directory differ from the types; write nothing. The directory is --output, or by
        default deploy/crds (docs/reference with --docs).
    docs
        Print the API reference in Markdown instead of the definitions.
    format
        Output format: yaml, or json for one list of all definitions.
    """
    chosen = _choose(kinds)
    files = {DOCS_FILE: reference_docs.markdown(chosen)} if docs else _definitions(chosen, format)
    if check:
        _check(files, output or (DOCS_DIRECTORY if docs else CRD_DIRECTORY), whole=not kinds and not docs)
    elif output:
        _write(files, output)
    elif docs or format == "json":
        terminal.write("".join(files.values()))
    else:
        terminal.write("---\n".join(files.values()))


def _choose(names: tuple[str, ...]) -> list[type[schema.CustomObject]]:
    if not names:
        return list(definitions.KINDS)
    chosen: list[type[schema.CustomObject]] = []
    for name in names:
        found = [kind for kind in definitions.KINDS if name.lower() in _names(kind.definition)]
        if not found:
            known = ", ".join(dict.fromkeys(kind.definition.kind for kind in definitions.KINDS))
            raise errors.Permanent(f"unknown kind {name!r}; known kinds: {known}")
        chosen += [kind for kind in found if kind not in chosen]
    return chosen


def _names(of: schema.Definition) -> set[str]:
    return {of.kind.lower(), of.plural, of.name, *of.short_names}


def _definitions(kinds: list[type[schema.CustomObject]], form: str) -> dict[str, str]:
    bodies = [definitions.manifest(kind) for kind in kinds]
    if form == "json":
        whole = {"apiVersion": "v1", "kind": "List", "items": bodies}
        return {"crds.json": json.dumps(whole, indent=2, ensure_ascii=False) + "\n"}
    return {definitions.file_name(body): definitions.to_yaml(body) for body in bodies}


def _write(files: dict[str, str], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        terminal.write(f"{directory / name}\n")


def _check(files: dict[str, str], directory: Path, *, whole: bool) -> None:
    """Raise an error if a file is missing, out of date, or belongs to a deleted kind."""
    problems = []
    for name, text in files.items():
        path = directory / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(f"{path} is out of date")
    if whole:
        left_over = sorted(path for path in directory.glob("*.yaml") if path.name not in files)
        problems += [f"{path} belongs to no kind" for path in left_over]
    if problems:
        again = "kgwe crds --docs" if DOCS_FILE in files else "kgwe crds"
        raise errors.Permanent("; ".join(problems) + f"; run `{again} --output {directory}` and commit the result")
    terminal.write(f"{directory} is up to date\n")
