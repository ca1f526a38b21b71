"""Phrases of messages for people."""

from __future__ import annotations

import pytest

from kgwe.model.units import phrasing

GIB = 2**30


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (0, "pod", "", "0 pods"),
        (1, "GPU", "", "1 GPU"),
        (2, "GPU", "", "2 GPUs"),
        (0.5, "core", "", "0.5 cores"),
        (8.0, "GPU", "", "8 GPUs"),
        (1, "leaf", "leaves", "1 leaf"),
        (4, "leaf", "leaves", "4 leaves"),
        (1234567, "GPU", "", "1234567 GPUs"),
    ],
)
def test_numbers_agree_with_their_nouns(number, noun, plural, text):
    assert phrasing.format_count(number, noun, plural) == text


def test_amounts_have_the_usual_units():
    assert phrasing.format_bytes(34359738368) == "32 GiB"
    assert phrasing.format_bytes(3 * GIB // 2) == "1.5 GiB"
    assert phrasing.format_bytes(GIB // 2) == "512 MiB"
    assert phrasing.format_bytes(1945 * GIB) == "1945 GiB"
    assert phrasing.format_mib(81920) == "80 GiB"
    assert phrasing.format_cores(64_000) == "64 cores"
    assert phrasing.format_cores(1000) == "1 core"
    assert phrasing.format_cores(500) == "0.5 cores"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(86_400, "24h"), (5400, "1h30m"), (45, "45s"), (0, "0s"), (259_200, "3d"), (3_725, "1h2m"), (3_605, "1h5s")],
)
def test_durations_have_at_most_two_units(seconds, text):
    assert phrasing.format_duration(seconds) == text


def test_lists_are_bounded():
    assert phrasing.list_names([]) == ""
    assert phrasing.list_names(["h1", "h2"]) == "h1, h2"
    assert phrasing.list_names(["h1", "h2", "h3", "h4", "h5"], 2) == "h1, h2 +3"
    assert phrasing.shorten("abcdef", 6) == "abcdef"
    assert phrasing.shorten("abcdefg", 6) == "abcde…"


def test_sentences_end_once():
    assert [phrasing.end_sentence(text) for text in ("", "Done", "Done.", "Did you mean H100?")] == [
        "",
        "Done.",
        "Done.",
        "Did you mean H100?",
    ]


def test_words_are_joined():
    assert phrasing.join_words([]) == ""
    assert phrasing.join_words(["a"]) == "a"
    assert phrasing.join_words(["a", "b"]) == "a and b"
    assert phrasing.join_words(["a", "b", "c"], "or") == "a, b or c"


def test_levels_have_plurals():
    assert [phrasing.pluralize(level) for level in ("leaf", "spine", "nvlink")] == [
        "leaves",
        "spines",
        "NVLink domains",
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("H10O", "H100"),
        ("h200", "H100"),
        ("nvidia-h100-80gb-hbm3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA-A100-SXM4-80G", "NVIDIA-A100-SXM4-80GB"),
        ("MI300X", ""),
        ("", ""),
    ],
)
def test_typos_are_corrected(name, meant):
    assert phrasing.find_similar(name, ["NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-GB200"]) == meant
    assert phrasing.find_similar(name, []) == ""
