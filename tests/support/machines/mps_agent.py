"""An agent that only looks after MPS daemons, to be killed: `python mps_agent.py ROOT BINARY UUID…`."""

import asyncio
import sys
from pathlib import Path

from kgwe.hardware.mps.daemons import MpsDaemons
from kgwe.hardware.mps.desired import DesiredDaemon


async def main(root: str, binary: str, *uuids: str) -> None:
    daemons = MpsDaemons(Path(root), binary=binary)
    await daemons.open()
    await daemons.apply([DesiredDaemon(uuid) for uuid in uuids])
    sys.stdout.write("applied\n")
    sys.stdout.flush()
    await asyncio.sleep(60)


asyncio.run(main(*sys.argv[1:]))
