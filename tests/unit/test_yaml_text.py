"""YAML is read safely, whatever it is."""

from __future__ import annotations

import pytest
import yaml

from kgwe import yaml_text


def test_a_document_is_read():
    assert yaml_text.parse_yaml("a: [1, {b: text}]\nc: 2026-01-01\n")["a"] == [1, {"b": "text"}]


def test_documents_are_read_one_after_the_other():
    assert list(yaml_text.parse_documents("a: 1\n---\n---\n[2]\n")) == [{"a": 1}, None, [2]]


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, "? " * 100_000])
def test_a_document_that_is_nested_too_deeply_is_refused(text: str):
    with pytest.raises(yaml_text.TooDeep, match="at most 200 levels"):
        yaml_text.parse_yaml(text)


def test_neighbours_are_not_nesting():
    assert len(yaml_text.parse_yaml("- [[1]]\n" * 1000)) == 1000


def test_a_document_at_the_limit_is_read():
    depth = yaml_text.MAX_DEPTH
    assert yaml_text.parse_yaml("[" * depth + "]" * depth)


@pytest.mark.parametrize("text", ["a: [1", "!!python/object/apply:os.getpid []", "a: \0"])
def test_what_is_not_valid_is_an_error_of_yaml(text: str):
    with pytest.raises(yaml.YAMLError):
        yaml_text.parse_yaml(text)
