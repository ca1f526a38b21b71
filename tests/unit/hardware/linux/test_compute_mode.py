"""The compute mode of a card; nvidia-smi is a script that notes what it was asked."""

from pathlib import Path

import pytest

from kgwe import errors
from kgwe.hardware.linux import compute_mode


def script(directory: Path, body: str) -> Path:
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


async def test_the_mode_is_set_and_taken_back(tmp_path):
    smi = script(tmp_path, f'echo "$@" >> {tmp_path}/asked')
    set_exclusive = compute_mode.compute_mode_setter(str(smi))
    await set_exclusive("GPU-a", True)  # noqa: FBT003 - on
    await set_exclusive("GPU-a", False)  # noqa: FBT003 - off
    assert (tmp_path / "asked").read_text() == "-i GPU-a -c EXCLUSIVE_PROCESS\n-i GPU-a -c DEFAULT\n"


@pytest.mark.parametrize(
    ("body", "word"),
    [("echo Insufficient Permissions; exit 4", "Insufficient Permissions"), ("exec sleep 30", "in 0.2 s")],
)
async def test_what_does_not_work_says_why(tmp_path, body, word):
    set_exclusive = compute_mode.compute_mode_setter(
        str(script(tmp_path, body)), deadline_s=0.2 if "sleep" in body else 10
    )
    with pytest.raises(errors.Transient, match=word):
        await set_exclusive("GPU-a", True)  # noqa: FBT003 - on


async def test_without_nvidia_smi_it_says_so(tmp_path):
    with pytest.raises(errors.Transient, match="cannot run"):
        await compute_mode.compute_mode_setter(str(tmp_path / "nowhere"))("GPU-a", True)  # noqa: FBT003 - on
