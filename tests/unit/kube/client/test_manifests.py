"""Manifest files: what is read, and how a file that is none is refused."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.kube.client import manifests

GOOD = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"


def test_every_document_of_a_file_is_read_and_empty_ones_are_passed_over(tmp_path):
    path = tmp_path / "manifest.yaml"
    path.write_text(f"---\n---\n{GOOD}---\n# only a comment\n---\n{GOOD.replace('a}', 'ü}')}", encoding="utf-8")

    assert [document["metadata"]["name"] for document in manifests.load_manifests(path)] == ["a", "ü"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="not YAML"),
        pytest.param(b"\x00\xff\xfe", id="not text"),
        pytest.param(b"- a\n- b\n", id="a list"),
        pytest.param(b"just words", id="a word"),
        pytest.param(b"kind: ConfigMap\nmetadata: {name: a}\n", id="no apiVersion"),
        pytest.param(b"apiVersion: v1\nmetadata: {name: a}\n", id="no kind"),
        pytest.param(b"apiVersion: v1\nkind: ConfigMap\n", id="no metadata"),
        pytest.param(b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n", id="empty metadata"),
        pytest.param(b"apiVersion: v1\nkind: ConfigMap\nmetadata: {labels: {}}\n", id="no name"),
        pytest.param(b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 5}\n", id="a number for a name"),
        pytest.param(b"apiVersion: 1\nkind: ConfigMap\nmetadata: {name: a}\n", id="a number for a version"),
        pytest.param(b"!!python/object/apply:os.system [true]", id="code"),
        pytest.param(None, id="no such file"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused_by_name(tmp_path, content):
    path = tmp_path / "manifest.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(errors.Permanent, match=r"manifest\.yaml"):
        manifests.load_manifests(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {path}: No such file or directory"),
        (b"a: b\nc: [1,\n", "{path}, line 3: not valid YAML: "),
        (b"\xff\xfe\x00", "{path} is not valid YAML: it is not text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path, content, message):
    path = tmp_path / "manifest.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(errors.Permanent) as caught:
        manifests.load_manifests(path)
    assert str(caught.value).startswith(message.format(path=path))
    assert "unicode string" not in str(caught.value)


def test_the_document_at_fault_is_named(tmp_path):
    path = tmp_path / "manifest.yaml"
    path.write_text(f"{GOOD}---\nkind: ConfigMap\n")

    with pytest.raises(errors.Permanent, match=r"document 2: needs apiVersion, kind and metadata\.name"):
        manifests.load_manifests(path)


def test_a_list_is_its_items(tmp_path):
    path = tmp_path / "manifest.yaml"
    items = "".join(f"- {{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}}}\n" for name in "bc")
    path.write_text(f"{GOOD}---\napiVersion: v1\nkind: List\nmetadata: {{resourceVersion: ''}}\nitems:\n{items}")

    assert [document["metadata"]["name"] for document in manifests.load_manifests(path)] == ["a", "b", "c"]


def test_a_bad_item_of_a_list_is_named(tmp_path):
    path = tmp_path / "manifest.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n")

    with pytest.raises(errors.Permanent, match="document 1, item 1: needs apiVersion"):
        manifests.load_manifests(path)
