"""`kgwe sharing`."""

import json

import pytest
import yaml

from kgwe.cli.main import main
from kgwe.sharing import timeslicing


def run(capsys, *arguments: str) -> str:
    # A command ends by leaving.
    with pytest.raises(SystemExit) as left:
        main(["sharing", *arguments])
    out = capsys.readouterr()
    assert left.value.code == 0, out.err
    return str(out.out)


def test_a_configuration_is_printed_and_is_one_the_plugin_reads(capsys):
    text = run(capsys, "timeslicing", "4", "nvidia.com/mig-1g.10gb=2", "--rename", "-o", "yaml")
    read = timeslicing.parse_config(text)
    assert read.replicas == (("nvidia.com/gpu", 4), ("nvidia.com/mig-1g.10gb", 2))
    assert (read.renames, read.refuses_many) == (True, True)


def test_a_config_map_holds_it_as_readable_text(capsys):
    text = run(capsys, "mps", "8", "--config-map", "gpu-sharing", "-n", "ops", "--key", "mps-8")
    assert "  mps-8: |\n    version: v1\n" in text
    made = yaml.safe_load(text)
    assert made["kind"] == "ConfigMap"
    assert timeslicing.parse_config(made["data"]["mps-8"]).method is timeslicing.Method.MPS
    assert json.loads(run(capsys, "mps", "8", "-o", "json"))["sharing"]["mps"]["resources"][0]["replicas"] == 8


@pytest.mark.parametrize("given", [["many"], ["=4"], ["1"], [], ["nvidia.com/gpu=x"]])
def test_what_makes_no_sense_is_refused(capsys, given):
    with pytest.raises(SystemExit) as left:
        main(["sharing", "timeslicing", *given])
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith("kgwe: ")


def test_a_configuration_is_checked(capsys, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n")
    told = run(capsys, "check", str(file))
    assert told == "timeSlicing: each nvidia.com/gpu is advertised as 4 nvidia.com/gpu; a pod may request several\n"


def test_a_pod_is_told_how_to_find_its_mps_daemon(capsys):
    made = yaml.safe_load(run(capsys, "client", "GPU-aaaa", "--threads", "10", "--memory", "4096"))
    [container] = made["spec"]["containers"]
    pipe = "/run/kgwe/mps/GPU-aaaa/pipe"
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "NVIDIA_VISIBLE_DEVICES": "GPU-aaaa",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
    }
    assert container["volumeMounts"][0]["mountPath"] == made["spec"]["volumes"][0]["hostPath"]["path"] == pipe
    with pytest.raises(SystemExit):
        main(["sharing", "client", "../etc"])
    assert "not the UUID" in capsys.readouterr().err
