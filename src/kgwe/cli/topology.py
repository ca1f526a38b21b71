"""`kgwe topology FILE`: shows how the GPUs of a machine are connected, from text of nvidia-smi or NCCL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from cyclopts import App, Parameter

from kgwe import errors, terminal, text_files
from kgwe.model.gpu import bandwidth, catalog, drawing, machine_text
from kgwe.model.simfleet import suggestion

if TYPE_CHECKING:
    from kgwe.model.gpu.topology import Nic, Slot, Wiring

app = App(
    name="topology",
    help="""Read how the GPUs of a machine are connected, draw the topology, and suggest a fleet model.

FILE is the output of `nvidia-smi topo -m`, or an NCCL topology (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE); - reads standard
input. The agent reads such a file if the driver does not report the topology: see topologyFile in docs/agent.md.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  nvidia-smi topo -m | kgwe topology -
  kgwe topology topo.txt --gpu H100-SXM5-80GB --svg machine.svg
  kgwe topology ndv5-topo.xml -o yaml
  kgwe topology topo.txt --gpu L40S --fleet > mine.yaml
  kgwe local fleet apply ./mine.yaml --nodes 8""",
)


@app.default
def topology(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    gpu: str = "",
    fleet: bool = False,
    name: str = "",
    svg: Path | None = None,
    output: Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])] = "text",
) -> int:
    """Read the topology of a machine from a file and print it.

    Parameters
    ----------
    file
        Output of `nvidia-smi topo -m`, or NCCL XML; - for standard input.
    gpu
        GPU model, such as H100-SXM5-80GB. `nvidia-smi topo -m` does not contain it, and NVLink bandwidth depends on
        it.
    fleet
        Print a fleet model of such machines for `kgwe local fleet apply` and `kgwe simulate --fleet`.
    name
        Name of the machine and of the fleet model. Default: the name of the file.
    svg
        Draw the topology to this SVG file.
    output
        Output format.
    """
    wiring = machine_text.parse_machine(_read(file), model=catalog.find_model(gpu) if gpu else None)
    called = name or (Path(file).stem if file != "-" else "machine")
    if svg is not None:
        _write(svg, drawing.to_svg(wiring, called))
    if fleet:
        terminal.write(suggestion.to_yaml(wiring, name=called, gpu=catalog.find_model(gpu) if gpu else None))
    elif output == "text":
        terminal.write(drawing.to_text(wiring))
        guess = "" if gpu else f" (the GPU is probably {suggestion.guess_gpu(wiring).name}; set it with --gpu)"
        terminal.write_error(f"To print a fleet model of such machines: kgwe topology {file} --fleet{guess}\n")
    elif output == "json":
        terminal.write(json.dumps(_to_data(wiring), indent=2) + "\n")
    else:
        terminal.write(yaml.safe_dump(_to_data(wiring), sort_keys=False, default_flow_style=None, width=120))
    return 0


def _read(file: str) -> str:
    try:
        if file == "-":
            return text_files.read_stream(sys.stdin, "standard input")
        return text_files.read_text(Path(file))
    except OSError as exc:
        raise errors.NotFound(f"cannot read {file}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise errors.Permanent(f"{file} is not text; expected the output of `nvidia-smi topo -m`, or NCCL XML") from exc


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise errors.Permanent(f"cannot write {path}: {exc.strerror}") from exc
    terminal.write_error(f"Drawing: {path}\n")


def _to_data(wiring: Wiring) -> dict[str, Any]:
    """Return the machine as plain data for JSON and YAML; unknown values are left out."""
    cards = range(len(wiring.slots))
    rates = len(cards) <= bandwidth.MAX_TABLED_GPUS
    return {
        "gpus": [{"index": number, **_describe_place(slot)} for number, slot in enumerate(wiring.slots)],
        "nics": [{"name": nic.name, "gbitPerSecond": nic.gbit_per_s, **_describe_place(nic)} for nic in wiring.nics],
        "nvlink": {
            "version": wiring.nvlink_version,
            "switchLinks": wiring.switch_links,
            "mesh": [list(link) for link in wiring.mesh],
            "linksDown": list(wiring.links_down),
        },
        "matrix": wiring.matrix(),
        "ringGBPerSecond": round(bandwidth.set_gb_per_s(wiring, cards), 3) if rates and len(cards) > 1 else None,
    }


def _describe_place(device: Slot | Nic) -> dict[str, Any]:
    found = {
        "bus": getattr(device, "bus", ""),
        "numaNode": device.numa,
        "cpus": getattr(device, "cpus", ""),
        "pcie": list(device.pcie),
    }
    return {key: value for key, value in found.items() if value not in ("", None, [])}
