"""Text of users that no terminal obeys."""

from __future__ import annotations

import json

import pytest

from kgwe.visible_text import escape_line, escape_text

ATTACK = "\x1b[2J\x1b]0;title\x07\u202egpj.exe\x9b31m\u2066\u200b\x7f\r"


def test_control_and_bidirectional_characters_become_visible() -> None:
    shown = escape_text(ATTACK)
    assert shown == (r"\u001b[2J\u001b]0;title\u0007\u202egpj.exe\u009b31m\u2066\u200b\u007f\u000d")
    assert escape_text(shown) == shown


def test_lines_and_letters_of_all_scripts_stay() -> None:
    text = "a\tb\nGröße\u00a0日本語 … ✓ 🚀"
    assert escape_text(text) == text
    assert escape_line("a\nb") == r"a\u000ab"


@pytest.mark.parametrize("value", [ATTACK, "\U000e0041", "\ud800", "\u2028"])
def test_escaped_json_has_the_same_value(value: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    shown = escape_text(text)
    assert shown.isprintable()
    assert json.loads(shown) == value
