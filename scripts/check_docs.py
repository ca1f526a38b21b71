"""Check the documentation: placeholders, dead links, unknown commands, wrong paths, invalid manifests and banned words.

`make check` runs it. The command line parses every `kgwe …` line of a code block; in running text the command and its
options must exist. Manifests of KGWE's kinds are validated against the schemas in `deploy/crds`, without a cluster. The
script prints one line per problem and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cyclopts import CycloptsError

from kgwe.cli.main import build_app, order_arguments
from kgwe.monitoring import reasons

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
_PLACEHOLDER = re.compile(r"\b(?:[A-Z]+_TABLE|TODO|TBD|FIXME|XXX)\b")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(kgwe [^`]+)`")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "sh", "bash", "shell", "console", "text"}
# What ends a command inside a line of shell.
_ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>", "#"}
# Parts that a reader fills in.
_OPEN = re.compile(r"…|\.\.\.|[\[\]<>{}|]")
# Words that make a sentence a riddle: name the object, the controller or the user instead.
_BANNED = re.compile(
    r"\b(?:whoever|whomever|nobody|somebody|anybody|everybody|anew|(?:is|are|was|were) told|in\s+vain"
    r"|of\s+late|as\s+ever|of\s+others)\b",
    re.IGNORECASE,
)
# The history quotes what was said then.
_WORDS_ALLOWED = {"CHANGELOG.md"}
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w-]+(?:/[\w.-]+)+/?|[\w-]+/")
_MODULE = re.compile(r"kgwe(?:\.\w+)+")
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


# Where reasons of conditions are: Condition(type, status, reason, …), DesiredCondition(status, reason, …).
_REASON_ARGUMENT = {"Condition": 2, "DesiredCondition": 1}
_WITH_REASON = {"LabelCheck", "DriverState", "Condition"}
_STATUSES = {"True", "False", "Unknown"}
_CAMEL = re.compile(r"[A-Z][A-Za-z]+")
# Packages that write no conditions of KGWE.
_WITHOUT_CONDITIONS = {"bench", "cli", "local", "sim", "monitoring"}


def find_problems(root: Path) -> Iterator[str]:
    """One line for each mistake in the documents, examples and deployment files below `root`."""
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        for problem in (
            *_find_placeholders(text),
            *_find_dead_links(path, text),
            *_find_wrong_commands(text),
            *(_find_banned_words(text) if path.name not in _WORDS_ALLOWED else ()),
            *(_find_missing_paths(text) if path.name not in _WORDS_ALLOWED else ()),
            *_find_invalid_blocks(text),
        ):
            yield f"{name}: {problem}"
    for path in [*sorted((root / "examples").glob("*.yaml")), *sorted((root / "deploy").rglob("*.yaml"))]:
        text = path.read_text(encoding="utf-8")
        for problem in (*_find_banned_words(text), *_find_invalid_manifests(text)):
            yield f"{path.relative_to(root)}: {problem}"


def find_missing_runbooks(root: Path) -> Iterator[str]:
    """Reasons of conditions in the code without a page in docs/runbooks. Alerts and their pages have one source."""
    known = {path.stem for path in (root / "docs" / "runbooks").rglob("*.md")} | set(reasons.HEALTHY)
    for name, where in sorted(find_reasons(root / "src" / "kgwe").items()):
        if name not in known:
            yield f"{where}: the reason {name} has no runbook: add it to src/kgwe/monitoring/reasons.py"


def find_unproven_claims(root: Path) -> Iterator[str]:
    """Claims of docs/security.md whose test does not exist. A claim is a row of a table with the column `test`."""
    text = (root / "docs" / "security.md").read_text(encoding="utf-8")
    is_claims = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_claims = False
        elif cells[-1] == "test":
            is_claims = True
        elif is_claims and not line.startswith("|---"):
            named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", cells[-1])
            if not named:
                yield f"docs/security.md: line {number}: the claim names no test"
            for path, test in named:
                file = root / path
                if not file.is_file() or (test and f"def {test}(" not in file.read_text(encoding="utf-8")):
                    yield f"docs/security.md: line {number}: no such test: {path}::{test}"


def find_reasons(sources: Path) -> dict[str, str]:
    """Return the reasons of conditions that the code writes, each with a place where it does."""
    found: dict[str, str] = {}
    for path in sorted(sources.rglob("*.py")):
        if path.relative_to(sources).parts[0] in _WITHOUT_CONDITIONS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _read_reasons(node):
                if _CAMEL.fullmatch(name) and name not in _STATUSES:
                    found.setdefault(name, f"{path.relative_to(sources.parent.parent)}:{getattr(node, 'lineno', 0)}")
    return found


def _read_reasons(node: ast.AST) -> Iterator[str]:
    """Reasons in one expression: members of a Reason, arguments of a Condition, and (status, reason, message)."""
    if isinstance(node, ast.ClassDef) and node.name in {"Reason", "UnmetReason"}:
        for line in node.body:
            if isinstance(line, ast.Assign):
                yield from _strings(line.value)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        place = _REASON_ARGUMENT.get(name)
        if place is not None and len(node.args) > place:
            yield from _strings(node.args[place])
        if name in _WITH_REASON:
            for keyword in node.keywords:
                yield from _strings(keyword.value) if keyword.arg == "reason" else ()
    elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
        first = node.elts[0]
        if isinstance(first, ast.Constant) and (first.value in _STATUSES or isinstance(first.value, bool)):
            yield from _strings(node.elts[1])


def _strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _find_banned_words(text: str) -> Iterator[str]:
    for found in _BANNED.finditer(text):
        yield f"line {_line(text, found.start())}: banned words: {' '.join(found.group().split())}"


def _find_missing_paths(text: str) -> Iterator[str]:
    """Files, folders and modules of this repository that a code span names and that do not exist."""
    sources = _ROOT / "src" / "kgwe"
    for found in _SPAN.finditer(text):
        span = found.group(1)
        if not (_is_missing_path(span, sources) or _is_missing_module(span, sources)):
            continue
        yield f"line {_line(text, found.start())}: no such file or module: {span}"


def _is_missing_path(span: str, sources: Path) -> bool:
    top = span.split("/", maxsplit=1)[0]
    places = (_ROOT, sources, sources.parent)
    known = any((base / top).is_dir() for base in places)
    return bool(_PATH.fullmatch(span)) and known and not any((base / span).exists() for base in places)


def _is_missing_module(span: str, sources: Path) -> bool:
    parts = span.split(".")[1:]
    if not _MODULE.fullmatch(span) or not (sources / parts[0]).is_dir():
        return False
    modules = (sources.joinpath(*parts[:size]).with_suffix(".py") for size in range(1, len(parts) + 1))
    return not sources.joinpath(*parts).is_dir() and not any(module.is_file() for module in modules)


def _find_invalid_blocks(text: str) -> Iterator[str]:
    for block in _BLOCK.finditer(text):
        if block["language"] in {"yaml", "yml"}:
            for problem in _find_invalid_manifests(textwrap.dedent(block["text"])):
                yield f"line {_line(text, block.start())}: {problem}"


def _find_invalid_manifests(text: str) -> Iterator[str]:
    """What the API server would not accept of KGWE's own kinds; CEL rules aside."""
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as exc:
        yield f"not YAML: {' '.join(str(exc).split())}"
        return
    for document in documents:
        if isinstance(document, dict) and (
            schema := _schemas().get((document.get("apiVersion"), document.get("kind")))
        ):
            properties = schema["properties"] | {"metadata": {"x-kubernetes-preserve-unknown-fields": True}}
            for problem in _find_schema_errors(document, schema | {"properties": properties}, ""):
                yield f"{document['kind']}{problem}"


@functools.cache
def _schemas() -> dict[tuple[Any, Any], dict[str, Any]]:
    """The schema of each kind of KGWE by apiVersion and kind."""
    found = {}
    for path in sorted((_ROOT / "deploy" / "crds").glob("*.yaml")):
        spec = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = version["schema"]["openAPIV3Schema"]
    return found


def _find_schema_errors(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    """The rules of a structural schema that a value breaks."""
    yield from _find_value_errors(value, schema, where)
    if isinstance(value, dict):
        yield from _find_object_errors(value, schema, where)
    if isinstance(value, list) and "items" in schema:
        for place, item in enumerate(value):
            yield from _find_schema_errors(item, schema["items"], f"{where}[{place}]")


def _find_value_errors(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    types = _TYPES.get(schema.get("type", ""), (object,))
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types and object not in types):
        yield f"{where}: not of type {schema['type']}: {value!r}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"
    number = value if isinstance(value, (int, float)) else len(value) if isinstance(value, (str, list)) else 0
    least = {int: "minimum", float: "minimum", str: "minLength", list: "minItems"}.get(type(value), "")
    most = least.replace("min", "max")
    if not schema.get(least, number) <= number <= schema.get(most, number):
        yield f"{where}: {value!r} is too small or too large"


def _find_object_errors(value: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}.{name}: missing"
    for name, item in value.items():
        if name in properties:
            yield from _find_schema_errors(item, properties[name], f"{where}.{name}")
        elif isinstance(others, dict):
            yield from _find_schema_errors(item, others, f"{where}.{name}")
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{where}.{name}: no such field"


def _find_placeholders(text: str) -> Iterator[str]:
    for found in _PLACEHOLDER.finditer(text):
        yield f"line {_line(text, found.start())}: placeholder {found.group()}"


def _find_dead_links(path: Path, text: str) -> Iterator[str]:
    for found in _LINK.finditer(text):
        target, _, anchor = found.group(1).partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        aim = (path.parent / target).resolve() if target else path
        if not aim.exists():
            yield f"line {_line(text, found.start())}: no such file: {target}"
        elif anchor and aim.suffix == ".md" and anchor not in _anchors(aim):
            yield f"line {_line(text, found.start())}: {aim.name} has no heading #{anchor}"


@functools.cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in _HEADING.findall(path.read_text()))
    return frozenset(re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings)


def _find_wrong_commands(text: str) -> Iterator[str]:
    for block in _BLOCK.finditer(text):
        if block["language"] in _SHELLS:
            for number, command in _commands(block["text"]):
                if problem := _parse(command):
                    yield f"line {_line(text, block.start()) + number}: `{shlex.join(command)}`: {problem}"
    for found in _INLINE.finditer(_BLOCK.sub(lambda each: "\n" * each.group().count("\n"), text)):
        if problem := _look_up(found.group(1).split()):
            yield f"`{found.group(1)}`: {problem}"


def _commands(block: str) -> Iterator[tuple[int, list[str]]]:
    """The `kgwe` commands of a block with their lines; such as have parts to fill in are left out."""
    for number, line in enumerate(block.replace("\\\n", " ").split("\n"), 1):
        typed = line.strip().removeprefix("$ ")
        if not typed.startswith("kgwe "):
            continue
        try:
            parts = shlex.split(typed, comments=True)
        except ValueError:
            continue
        ends = [place for place, part in enumerate(parts) if part in _ENDS]
        command = parts[: ends[0]] if ends else parts
        if not any(_OPEN.search(part) for part in command):
            yield number, command


def _parse(command: list[str]) -> str:
    """Why the command line would not take it; empty: it would."""
    try:
        build_app().parse_args(order_arguments(command[1:]), exit_on_error=False, print_error=False)
    except CycloptsError as exc:
        return " ".join(str(exc).split())
    return ""


def _look_up(command: list[str]) -> str:
    """Whether the command and its options exist."""
    app: Any = build_app()
    words = order_arguments(command[1:])
    names = [word for word in words if not word.startswith("-") or word == "--from-cluster"]
    path, found, _ = app.parse_commands(names)
    if not path and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return "no such command"
    target = found[-1]
    if target.default_command is None:
        return ""
    known = {name for argument in target.assemble_argument_collection() for name in argument.names}
    options = {re.split(r"[=,]", word)[0] for word in words if re.match(r"--[a-z]", word)}
    missing = sorted(each for each in options - known if each not in {"--help", "--version", "--from-cluster"})
    return f"no option {', '.join(missing)}" if missing else ""


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def main() -> int:
    problems = [*find_problems(_ROOT), *find_missing_runbooks(_ROOT), *find_unproven_claims(_ROOT)]
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
