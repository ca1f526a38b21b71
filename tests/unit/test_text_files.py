"""Text files are read up to a limit."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kgwe import errors, text_files


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"12\r\n56\r8")
    assert text_files.read_text(file, 8) == "12\n56\n8"
    with pytest.raises(errors.Permanent, match="is too large: at most 7 bytes are read"):
        text_files.read_text(file, 7)


def test_a_stream_is_read_up_to_the_limit() -> None:
    assert text_files.read_stream(io.StringIO("12345678"), "standard input", 8) == "12345678"
    with pytest.raises(errors.Permanent, match="standard input is too large"):
        text_files.read_stream(io.StringIO("123456789"), "standard input", 8)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(errors.Permanent, match="/dev/zero is too large: at most 16 MiB are read"):
        text_files.read_text(Path("/dev/zero"))
