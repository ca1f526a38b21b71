"""`kgwe simulate` from the outside."""

from __future__ import annotations

import json

import pytest

from kgwe.cli import main

SMALL = ["simulate", "--nodes", "8", "--jobs", "40"]


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main([*arguments])
    assert stop.value.code in {0, None}


def test_one_policy_prints_a_table(capsys):
    run(*SMALL, "--generate", "inference-heavy")

    out = capsys.readouterr().out
    assert "40 jobs (inference-heavy) on 8 nodes, 64 GPUs (dgx-h100), seed 1" in out
    assert "GPU allocation" in out


def test_json_is_the_same_for_the_same_seed_and_another_for_another(capsys):
    seen = []
    for seed in ("1", "1", "2"):
        run(*SMALL, "--policy", "random", "--failures", "5", "--seed", seed, "-o", "json")
        seen.append(capsys.readouterr().out)

    assert seen[0] == seen[1] != seen[2]
    assert json.loads(seen[0])["results"][0]["jobs"]["finished"] == 40


def test_policies_are_compared_side_by_side_and_written_to_a_page(capsys, tmp_path):
    report = tmp_path / "report.html"

    run(*SMALL, "--compare", "kgwe, spread,kgwe", "--html", str(report))

    seen = capsys.readouterr()
    assert seen.out.split("\n")[2].split() == ["kgwe", "spread"]
    assert str(report) in seen.err
    assert "<svg" in report.read_text()


def test_a_philly_list_is_replayed(capsys, tmp_path):
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit,duration_s,gpus\na,0,60,8\nb,10,60,16\n")

    run("simulate", "--nodes", "2", "--trace", str(trace), "--format", "philly", "-o", "json")

    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["jobs"]["finished"] == 2
    assert result["wait_s"]["max"] == 50


def test_recorded_decisions_are_replayed_to_the_same_end(capsys, tmp_path):
    decisions = tmp_path / "decisions.jsonl"
    run(*SMALL, "--record", str(decisions), "--policy", "consolidate", "-o", "json")
    (first,) = json.loads(capsys.readouterr().out)["results"]

    run(
        "simulate",
        "--nodes",
        "8",
        "--trace",
        str(decisions),
        "--format",
        "records",
        "--policy",
        "consolidate",
        "-ojson",
    )
    (second,) = json.loads(capsys.readouterr().out)["results"]

    assert second["jobs"] == first["jobs"]
    assert second["wait_s"]["mean"] == pytest.approx(first["wait_s"]["mean"], abs=1.0)


def test_an_openb_list_runs_on_its_own_nodes_or_on_a_fleet(capsys, tmp_path):
    trace = tmp_path / "pods.csv"
    rows = [f"p{k},4000,1024,1,{460 if k % 2 else 1000},,LS,Running,{k * 10},{k * 10 + 900}," for k in range(100)]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
    trace.write_text("\n".join([head + "scheduled_time", *rows]))
    nodes = "\n".join(f"n{k},64000,262144,2,{'T4' if k < 20 else 'P100'}" for k in range(40))
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}\n")

    for extra, fleet, count in ([], "openb", 10), (["--fleet", "dgx-h100"], "dgx-h100", 10):
        arguments = ["--trace", str(trace), "--format", "openb", "--policy", "best-fit", "-o", "json", "--load", "0.2"]
        run("simulate", *arguments, "--nodes", "10", *extra)
        decoded = json.loads(capsys.readouterr().out)
        assert (decoded["params"]["fleet"], decoded["params"]["nodes"]) == (fleet, count)
        assert decoded["results"][0]["jobs"]["finished"] == 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "nonsense"], "unknown policy 'nonsense'; known policies:"),
        (["--compare", "kgwe,nonsense"], "unknown policy 'nonsense'"),
        (["--fleet", "nonsense"], "no fleet model 'nonsense'"),
        (["--generate", "nonsense"], "unknown mix 'nonsense'; known mixes:"),
        (["--nodes", "0"], "--nodes must be at least 1"),
        (["--jobs", "0"], "at least one job"),
        (["--trace", "/nowhere/jobs.csv"], "No such file"),
        (["--compare", "kgwe,spread", "--record", "x"], "--record works with one policy only"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, said):
    with pytest.raises(SystemExit) as stop:
        main.main(["simulate", *arguments])

    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_the_help_shows_policies_mixes_and_examples(capsys):
    run("simulate", "--help")

    text = capsys.readouterr().out
    for word in ("mixfit", "llm-pretrain", "Examples:", "--spot-reclaims"):
        assert word in text
    assert "--spot-take-backs" not in text


def test_the_old_name_of_spot_reclaims_works(capsys):
    seen = []
    for options in ((), ("--spot-reclaims", "9"), ("--spot-take-backs", "9")):
        run(*SMALL, "--fleet", "mixed", *options, "-o", "json")
        seen.append(capsys.readouterr().out)

    assert seen[0] != seen[1] == seen[2]


def test_an_openb_fleet_is_filled_by_the_live_engine(capsys, tmp_path):
    nodes = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},32000,262144,4,T4\n" for n in range(6))
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(nodes)
    sizes = ((250, 1), (500, 1), (750, 1), (1000, 2))
    rows = [f"p{n},1000,1024,{sizes[n % 4][1]},{sizes[n % 4][0]},\n" for n in range(40)]
    pods = tmp_path / "openb_pod_list_small.csv"
    pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(rows))
    options = ("--format", "openb", "--fill", "2", "--compare", "kgwe,kgwe-mixfit,mixfit")
    run("simulate", "--trace", str(pods), *options, "-o", "json")
    told = json.loads(capsys.readouterr().out)
    assert (told["trace"], told["seeds"]) == ("small", [1, 2])
    assert all(80 < each["alloc_100"] <= 100 for each in told["policies"].values())
    run("simulate", "--trace", str(pods), "--format", "openb", "--fill", "1", "--compare", "kgwe-mixfit")
    assert "kgwe-mixfit" in capsys.readouterr().out


def test_filling_needs_an_openb_list(capsys):
    with pytest.raises(SystemExit) as stop:
        main.main([*SMALL, "--fill", "1"])
    assert stop.value.code == 1
    assert "--fill needs --trace with a pod list" in capsys.readouterr().err
