"""The process of a node on the host: `python -m kgwe.local.node.runner NODE_FILE`.

It makes the namespaces with the supervisor in them, and the link between host and node. It relays connections from the
node to the API server, which listens on loopback only. When it ends, however it ends, the node ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import KgweError, Permanent
from kgwe.local.host.ports import LOOPBACK
from kgwe.local.node import spec as node_spec
from kgwe.local.node.addresses import RELAY_PORT

if TYPE_CHECKING:
    from kgwe.local.node.spec import NodeSpec

_CHUNK_BYTES: Final = 64 * 1024
_START_S: Final = 20.0
_POLL_S: Final = 0.01
_STOP_S: Final = 5.0


class Relay:
    """Copies the bytes of each connection to a port on loopback, and back."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(LOOPBACK, self._port)
        except OSError:
            back.close()
            return
        await asyncio.gather(self._copy(client, server), self._copy(answers, back))

    @staticmethod
    async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                target.write(data)
                await target.drain()
        with contextlib.suppress(OSError, RuntimeError):
            target.close()


async def run(spec: NodeSpec) -> int:
    """Run the node until SIGTERM, SIGINT or its end; return the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    file = str(spec.folder / node_spec.FILE)
    inside = [sys.executable, "-m", "kgwe.local.node.supervisor", file]
    # Each ends with its parent: this process, unshare, the supervisor and with it the whole namespace.
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--ipc", *inside]
    node = await asyncio.create_subprocess_exec("setpriv", "--pdeathsig", "KILL", *apart, stdin=subprocess.DEVNULL)
    try:
        pid = await _find_child(node.pid)
        _make_link(spec, pid)
        server = await asyncio.start_server(Relay(spec.api_port).serve, spec.addresses.host, RELAY_PORT)
        async with server:
            ended = asyncio.create_task(node.wait())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
    except (KgweError, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
    finally:
        await _end(node)
    return 0 if stop.is_set() else 1


async def _end(node: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        node.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_S):
            await node.wait()


async def _find_child(parent: int) -> int:
    """Return the pid of the supervisor on the host, once it has left this process's network."""
    try:
        async with asyncio.timeout(_START_S):
            while (found := _find_isolated_child(parent)) is None:  # noqa: ASYNC110 - another process sets it
                await asyncio.sleep(_POLL_S)
            return found
    except TimeoutError:
        raise Permanent("the namespaces of the node could not be made; `unshare --pid --net --mount` fails") from None


def _find_isolated_child(parent: int) -> int | None:
    here = Path("/proc/self/ns/net").readlink()
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if Path(f"/proc/{child}/ns/net").readlink() != here:
                return int(child)
    return None


def _make_link(spec: NodeSpec, pid: int) -> None:
    """Make the link; it disappears with the node's network."""
    addresses = spec.addresses
    _run("ip", "link", "add", addresses.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "address", "add", f"{addresses.host}/24", "dev", addresses.link)
    _run("ip", "link", "set", addresses.link, "up")
    _run("ip", "route", "add", addresses.pods, "via", addresses.node)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Permanent(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()}")


def main(arguments: list[str]) -> int:
    return asyncio.run(run(node_spec.load_from_arguments(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
