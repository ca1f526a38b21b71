"""Workloads from files and from chance."""

from __future__ import annotations

import io
import json
from collections import Counter

import msgspec
import pytest
from tests.support.builders import small_fleet
from tests.support.machines import reference

from kgwe import errors
from kgwe.placement.fleet.constraints import Constraints, Operator, Requirement
from kgwe.placement.fleet.node import Gpus, Preference, Request
from kgwe.placement.fleet.taints import Toleration
from kgwe.placement.planning.ask import Ask
from kgwe.records import codec, decisions
from kgwe.records.decisions import Decision, End, Seat, SimulatedJob
from kgwe.sim import replay
from kgwe.sim.fleet import prices, sensitivity
from kgwe.sim.fleet.fleet import World
from kgwe.sim.fleet.locality import Spread
from kgwe.sim.loop import Simulation
from kgwe.sim.policies import registry
from kgwe.sim.record_writer import RecordWriter
from kgwe.sim.traces import generate, loaders, openb, recorded
from kgwe.sim.traces.workload import Workload

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,4000,1024,1,460,,LS,Running,0,1000,0
p1,8000,2048,2,1000,T4|P100,LS,Running,500,1500,1000
p2,2000,512,0,0,,BE,Failed,1000,3000,
"""


class TestOpenb:
    def test_pods_become_jobs_with_arrivals_pressed_to_the_load(self, tmp_path):
        path = tmp_path / "openb_pod_list_mine.csv"
        path.write_text(OPENB)

        workload = loaders.read_openb(path, cards=2, load=0.5)

        share, pair, no_gpu = workload.jobs
        assert (share.request.gpus, pair.request.gpus, no_gpu.request.gpus) == (Gpus(milli=460), Gpus(count=2), Gpus())
        # Run times are from the moment they were placed, where that is known.
        assert [job.duration_s for job in workload.jobs] == [1000, 500, 2000]
        assert pair.request.constraints.affinity is not None
        assert pair.request.constraints.affinity[0][0].values == ("T4", "P100")
        assert pair.arrival_s == pytest.approx(workload.span_s / 2, abs=0.01)
        # One share all the time, a pair in the second half: 1.46 cards at the most, pressed to 1 on average.
        span_s = workload.span_s
        used = 0.46 * min(1000, span_s) + 2 * min(500, span_s / 2)
        assert used / span_s == pytest.approx(0.5 * 2, rel=1e-3)

    def test_models_can_be_forgotten_for_another_fleet(self, tmp_path):
        path = tmp_path / "pods.csv"
        path.write_text(OPENB)

        workload = loaders.read_openb(path, cards=2, load=0.5, any_model=True)

        assert all(job.request.constraints.affinity is None for job in workload.jobs)

    def test_a_fleet_too_large_to_fill_is_told(self, tmp_path):
        path = tmp_path / "pods.csv"
        path.write_text(OPENB)

        with pytest.raises(errors.Permanent, match="cannot fill 4 to 50%: take fewer --nodes"):
            loaders.read_openb(path, cards=4, load=0.5)

    def test_a_list_without_times_says_what_it_lacks(self, tmp_path):
        path = tmp_path / "multigpu.csv"
        path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1,1,1,1000\n")

        with pytest.raises(errors.Permanent, match="needs name, creation_time, deletion_time"):
            loaders.read_openb(path, cards=4, load=0.5)

    def test_the_published_trace_runs_on_its_own_nodes(self):
        folder = reference.reference("openb")
        nodes = loaders.openb_nodes(openb.read_nodes(folder / openb.NODE_FILE))
        world = World.from_nodes(nodes)

        workload = loaders.read_openb(folder / "openb_pod_list_default.csv", cards=600, load=0.9)

        assert world.total == 6_212_000
        assert len(workload) == 8152
        assert all(registry.find_policy("first-fit")(world, workload, None).place(job) for job in workload.jobs[::500])  # type: ignore[arg-type] # draws nothing


class TestPhilly:
    def read(self, tmp_path, text):
        path = tmp_path / "jobs.csv"
        path.write_text(text)
        return loaders.read_philly(path)

    def test_columns_become_jobs(self, tmp_path):
        workload = self.read(
            tmp_path,
            "job,submit,duration_s,gpus,pods,user,priority,model,checkpoint_s\n"
            "a,2017-10-09 07:01:33,874,1,,ana,0,,\n"
            "b,2017-10-09 07:02:33,100.5,16,,bo,3,bert,60\n"
            "c,2017-10-09 07:03:33,100,6,3,,,,\n",
        )

        a, b, c = workload.jobs
        assert [job.arrival_s for job in workload.jobs] == [0, 60, 120]
        assert (a.request.gpus.count, a.pods, a.user) == (1, 1, "ana")
        assert (b.request.gpus.count, b.pods, b.priority, b.model, b.checkpoint_s) == (8, 2, 3, "bert", 60)
        assert (c.request.gpus.count, c.pods) == (2, 3)

    def test_seconds_and_missing_names_will_do(self, tmp_path):
        workload = self.read(tmp_path, "submit,duration_s,gpus\n10,5,1\n20,5,2\n")

        assert [(job.name, job.arrival_s) for job in workload.jobs] == [("job-1", 0), ("job-2", 10)]

    @pytest.mark.parametrize("row", ["x,5,1", "10,,1", "10,5,many", "10,-5,1"])
    def test_a_bad_row_is_named(self, tmp_path, row):
        with pytest.raises(errors.Permanent, match=r"job 1: .*needs submit, duration_s and gpus"):
            self.read(tmp_path, f"submit,duration_s,gpus\n{row}\n")

    def test_a_file_that_is_not_there_is_told(self, tmp_path):
        with pytest.raises(errors.NotFound, match="No such file"):
            loaders.read_philly(tmp_path / "absent.csv")


class TestRecords:
    def recorded(self, jobs, policy="first-fit"):
        file = io.BytesIO()
        workload = Workload.from_jobs("w", jobs)
        world = World.from_nodes([small_fleet.node(0, cut=1), small_fleet.node(1)])
        Simulation(world, workload, registry.find_policy(policy), watchers=(RecordWriter(file),)).run()
        return file.getvalue()

    def test_a_decision_tells_request_state_and_seats(self):
        lines = [json.loads(line) for line in self.recorded([small_fleet.job("a", 3, 7, gpus=2)]).splitlines()]

        whole, decision, end = lines
        assert [line["kind"] for line in lines] == ["snapshot", "decision", "end"]
        assert decision["ask"]["request"] == {"gpus": {"count": 2}, "cpu_milli": 1000}
        assert decision["by"] == "simulate"
        assert len(decision["snapshot"]) == 16
        assert decision["snapshot"] == whole["snapshot"]
        assert decision["seats"][0]["node"] == "n0"
        assert len(decision["seats"][0]["cards"]) == 2
        assert end == {"kind": "end", "at_s": 10.0, "job": "a"}

    def test_decisions_of_a_simulation_are_replayed_like_those_of_the_scheduler(self, tmp_path):
        jobs = [small_fleet.job(f"j{number}", number, 50, gpus=1 + number % 3) for number in range(12)]
        path = tmp_path / "decisions.jsonl"
        path.write_bytes(self.recorded(jobs, policy="kgwe"))

        outcomes = list(replay.replay(decisions.read_lines([path])))

        assert len(outcomes) == 12
        assert [outcome.difference for outcome in outcomes] == [""] * 12

    def test_what_was_recorded_can_be_run_again(self, tmp_path):
        limits = Constraints(
            selector=(("zone", "a"),),
            affinity=((Requirement("x", Operator.NOT_IN, ("1",)),),),
            tolerations=(Toleration("k", "Exists"),),
            avoid=frozenset({"n9"}),
        )
        jobs = [
            small_fleet.job("a", 0, 50, gpus=1, pods=2, priority=4, user="ana", model="bert", checkpoint_s=7.0),
            small_fleet.job("b", 1, 20, gpus=Gpus(milli=300, share_mib=1000)),
            small_fleet.job("c", 2, 30, gpus=Gpus(profile="1g.10gb", slices=1)),
        ]
        request = Request(Gpus(count=1), 5, 6, Preference.SAME_NUMA, 1.5, 40, "A100", "Ampere", limits)
        ask = Ask("w", request)
        path = tmp_path / "decisions.jsonl"
        path.write_bytes(self.recorded(jobs))

        again = recorded.read_workload("w", decisions.read_lines([path]))

        assert again.jobs == Workload.from_jobs("w", jobs).jobs
        assert codec.decode_value(Ask, msgspec.json.decode(msgspec.json.encode(codec.encode_ask(ask)))) == ask

    def test_a_job_without_an_end_runs_until_the_last_line(self):
        ask = msgspec.json.decode(msgspec.json.encode(codec.encode_ask(Ask("a", Request(Gpus(), cpu_milli=1)))))
        seats = (Seat("n0"),)
        decision = Decision(
            at_s=5, by="simulate", job="a", snapshot="", ask=ask, seats=seats, simulated=SimulatedJob(0)
        )

        (job,) = recorded.read_workload("w", [("", decision), ("", End(65, "other"))]).jobs

        assert (job.arrival_s, job.duration_s) == (0, 60)

    def test_a_line_that_is_no_record_is_named(self, tmp_path):
        path = tmp_path / "decisions.jsonl"
        path.write_text('{"kind":"end","at_s":1.0,"job":"a"}\n{"kind":"guess"}\n')

        with pytest.raises(errors.Permanent, match=r"decisions.jsonl:2 is not a decision record"):
            list(decisions.read_lines([path]))


class TestGenerate:
    @pytest.mark.parametrize("mix", sorted(generate.MIXES))
    def test_a_seed_gives_the_same_workload_for_ever(self, mix):
        one, same, other = (generate.generate(mix, jobs=200, cards=512, seed=seed) for seed in (1, 1, 2))

        assert one.jobs == same.jobs
        assert one.jobs != other.jobs

    @pytest.mark.parametrize("mix", sorted(generate.MIXES))
    def test_the_load_is_what_was_asked_for(self, mix):
        workload = generate.generate(mix, jobs=2000, cards=512, seed=3, load=0.8)

        assert workload.gpu_seconds / workload.span_s / 512 == pytest.approx(0.8, rel=0.05)

    def test_no_job_asks_for_more_than_a_quarter_of_the_fleet(self):
        workload = generate.generate("llm-pretrain", jobs=500, cards=64, seed=1)

        assert max(job.milli for job in workload.jobs) <= 16_000

    def test_people_work_by_day(self):
        workload = generate.generate("research", jobs=4000, cards=64, seed=1)
        by_half = Counter(job.arrival_s % 86_400 < 43_200 for job in workload.jobs if job.arrival_s < 20 * 86_400)

        assert by_half[True] > 1.3 * by_half[False]

    def test_an_unknown_mix_names_those_there_are(self):
        with pytest.raises(errors.Permanent, match="known mixes: research, inference-heavy, llm-pretrain"):
            generate.generate("mystery", jobs=1, cards=1, seed=1)


def slowdown(table, model, *, boxes, fewest, contention=1.0, least=1.0):
    found, best = Spread(boxes, boxes, 0, contention), Spread(fewest, fewest, 0, least)
    return sensitivity.slowdown(table, model, found=found, best=best)


class TestSensitivity:
    def test_the_defaults_are_what_the_measurements_give(self):
        folder = reference.reference(sensitivity.FOLDER)

        assert sensitivity.fit_slowdowns(folder) == dict(sensitivity.DEFAULTS)

    def test_only_leaving_the_box_is_charged(self):
        table = sensitivity.DEFAULTS

        assert slowdown(table, "bert", boxes=1, fewest=1) == 1
        assert slowdown(table, "bert", boxes=2, fewest=1) == 2.38
        assert slowdown(table, "bert", boxes=40, fewest=1) == 1.77
        assert slowdown(table, "bert", boxes=8, fewest=4) == 1
        assert slowdown(table, "unheard-of", boxes=8, fewest=1) == 1

    def test_time_on_the_network_grows_with_what_is_lost_on_the_way(self):
        table = {"even": (2.0,)}  # on two nodes half of the step is the network
        assert slowdown(table, "even", boxes=4, fewest=4, contention=3.0) == pytest.approx(0.5 + 0.5 * 3)
        assert slowdown(table, "even", boxes=4, fewest=4, contention=3.0, least=3.0) == 1
        assert slowdown(table, "even", boxes=2, fewest=1, contention=3.0) == pytest.approx(1 + 1 * 3)
        assert slowdown(table, "even", boxes=1, fewest=1, contention=3.0) == 1

    def test_medians_are_of_equal_batches_and_never_below_one(self, tmp_path):
        (tmp_path / "mine.csv").write_text(
            "placement,local_bsz,step_time\n2,8,1.0\n11,8,1.5\n2,16,2.0\n11,16,5.0\n3,8,1.0\n111,8,0.5\n11,99,70\n"
        )

        assert sensitivity.fit_slowdowns(tmp_path) == {"mine": (2.0, 1.0)}

    def test_an_empty_folder_is_told(self, tmp_path):
        with pytest.raises(errors.NotFound, match="one CSV file per model"):
            sensitivity.fit_slowdowns(tmp_path)


class TestPrices:
    def test_the_prices_that_come_along_are_those_of_the_list(self):
        path = reference.reference("prices", "gpu_prices_2026-08-22.csv")

        listed = prices.read_prices(path, "us-east-1")

        for name, (on_demand, spot) in prices.PRICES.items():
            assert (round(listed[name][0], 2), round(listed[name][1] or 0, 2)) == (on_demand, spot)

    def test_a_file_that_is_no_price_list_is_told(self, tmp_path):
        path = tmp_path / "prices.csv"
        path.write_text("a,b\n1,2\n")

        with pytest.raises(errors.Permanent, match="is not a price list"):
            prices.read_prices(path, "us-east-1")
