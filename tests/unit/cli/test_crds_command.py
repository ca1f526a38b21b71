"""`kgwe crds`, and that what is committed is what it writes."""

from pathlib import Path

import msgspec
import pytest

from kgwe import errors, yaml_text
from kgwe.cli.install import crds as command
from kgwe.kube.crd import definitions

ROOT = Path(__file__).parents[3]


def test_the_committed_definitions_are_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    command.run(check=True)


def test_the_committed_reference_is_up_to_date(monkeypatch):
    monkeypatch.chdir(ROOT)
    command.run(docs=True, check=True)


def test_everything_is_printed_as_one_stream(capsys):
    command.run()
    assert list(yaml_text.parse_documents(capsys.readouterr().out)) == definitions.manifests()


def test_json_is_one_list(capsys):
    command.run(format="json")
    assert msgspec.json.decode(capsys.readouterr().out)["items"] == definitions.manifests()


def test_a_kind_is_found_by_any_of_its_names(capsys):
    for name in ("MIGStrategy", "migstrategies", "migs", "migstrategies.kgwe.nvidia.io"):
        command.run(name)
        assert yaml_text.parse_yaml(capsys.readouterr().out)["metadata"]["name"] == "migstrategies.kgwe.nvidia.io"


def test_a_name_two_groups_share_prints_both(capsys):
    command.run("GPUWorkload")
    groups = [each["spec"]["group"] for each in yaml_text.parse_documents(capsys.readouterr().out)]
    assert sorted(groups) == ["gpu.warp.dev", "kgwe.nvidia.io"]


def test_no_two_kinds_share_a_short_name():
    short = [name for kind in definitions.KINDS for name in kind.definition.short_names]
    assert len(short) == len(set(short))
    assert {"gw", "gpuw"} <= set(short)


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(errors.Permanent, match="unknown kind 'pods'; known kinds: GPUWorkload, MIGStrategy"):
        command.run("pods")


def test_written_files_pass_the_check_until_they_change(tmp_path, capsys):
    command.run(output=tmp_path)
    assert len(capsys.readouterr().out.splitlines()) == len(definitions.KINDS)
    command.run(check=True, output=tmp_path)

    stale = tmp_path / "kgwe.nvidia.io_gpuworkloads.yaml"
    stale.write_text(stale.read_text(encoding="utf-8").replace("kind: GPUWorkload", "kind: Workload"), encoding="utf-8")
    (tmp_path / "kgwe.nvidia.io_gpubudgets.yaml").unlink()
    (tmp_path / "kgwe.nvidia.io_oldkinds.yaml").write_text("", encoding="utf-8")
    with pytest.raises(errors.Permanent) as refused:
        command.run(check=True, output=tmp_path)
    for problem in (
        "gpuworkloads.yaml is out of date",
        "gpubudgets.yaml is missing",
        "oldkinds.yaml belongs to no kind",
    ):
        assert problem in str(refused.value)
    assert f"run `kgwe crds --output {tmp_path}`" in str(refused.value)


def test_the_reference_names_every_field_and_every_rule(capsys):
    command.run(docs=True)
    page = capsys.readouterr().out
    assert "`gpuRequirements.topology.minBandwidthGBps`" in page
    assert "`nodePools[].spotPercentage`" in page
    assert "remove gpuRequirements.count and give the number of slices" in page
    for kind in definitions.KINDS:
        assert f"## {kind.definition.kind} ({kind.definition.api_version})" in page
