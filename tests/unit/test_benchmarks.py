"""The benchmarks' decisions, tables and handling of processes."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness import allreduce_summary, cases, jobs, machine, procfs, results, table  # noqa: E402  after the path
from harness import pushpull_summary as summary  # noqa: E402

IMPORT_MXNET = (sys.executable, "-c", "import mxnet")


def worker_times(*own_ms: float) -> dict:
    """Return what one worker writes for a case of two keys whose calls take 1 ms together."""
    return {"bytes": 4_000, "keys": 2, "times": [[0.5, 0.501, 0.5 + ms / 1e3] for ms in own_ms]}


def one_case(*trips_ms: float) -> dict[str, summary.Samples]:
    """Return the samples of one repeat of the 100 MB case."""
    return {"100MB": summary.Samples(100_000_000, 1, trips_ms, (10.0,) * len(trips_ms))}


def python(*lines: str) -> tuple[str, ...]:
    """Return a command that runs these lines in a bare interpreter."""
    return (sys.executable, "-I", "-S", "-c", "\n".join(lines))


class TestCases:
    def test_names_select_in_the_order_given(self):
        """A list of names selects those and keeps its order."""
        assert [case.name for case in cases.by_names("4MB,4KB", cases.CASES)] == ["4MB", "4KB"]

    def test_an_unknown_name_is_an_error_that_lists_the_known(self):
        """The message names both what was wrong and what would be right."""
        with pytest.raises(ValueError, match=r"unknown: 5MB; known are 4KB, 200KB"):
            cases.by_names("4KB,5MB", cases.CASES)

    def test_a_shortened_case_still_warms_up_and_repeats(self):
        """However short, one round trip is dropped and two are kept."""
        short = cases.CASES[-1].shortened(100)
        assert (short.warmup, short.iterations) == (1, 2)

    def test_sizes_are_what_the_names_say(self):
        """Names count thousands of bytes of float32."""
        assert [4 * case.elements for case in cases.CASES[:4]] == [4_000, 200_000, 4_000_000, 100_000_000]

    def test_every_target_is_of_a_case(self):
        """No target is lost by a misspelt name."""
        for targets in (cases.RATIO_TARGETS, cases.TWO_HOSTS_TARGETS):
            assert set(targets) <= {case.name for case in cases.CASES}

    def test_what_two_hosts_have_in_common_is_tcp(self):
        """Neither Unix sockets nor, without MPI of its own, a client of both."""
        assert [variant.name for variant in cases.VARIANTS if variant.can_span_hosts] == [
            "stock",
            "sockets",
            "2x1",
            "2x1-tcp",
        ]


class TestPlans:
    def test_stock_starts_scheduler_server_and_workers_on_one_port(self):
        """Each process of the stock job has its role and meets the others at the same place."""
        programs = jobs.stock_plan(("worker.py",), 4321)
        roles = [program.environment["DMLC_ROLE"] for program in programs]
        assert roles == ["scheduler", "server", "worker", "worker"]
        assert [program.argv for program in programs] == [IMPORT_MXNET] * 2 + [("worker.py",)] * 2
        assert {program.environment["DMLC_PS_ROOT_PORT"] for program in programs} == {"4321"}

    def test_stock_with_its_own_ipc_tells_all_its_processes(self):
        """And stock as it is told none."""
        variants = cases.by_names("stock,stock-ipc", cases.VARIANTS)
        plain, local = (jobs.plan(variant, ["python", "w.py"], Path()) for variant in variants)
        assert [program.environment.get("DMLC_LOCAL") for program in plain] == [None] * 4
        assert [program.environment.get("DMLC_LOCAL") for program in local] == ["1"] * 4

    def test_another_checkout_is_run_by_its_own_launcher(self):
        """The same variant, beside this tree's under a name of its own."""
        other = cases.VARIANTS[-1].of_tree(Path("/some/before"))
        assert other.name == "1x2-tcp@before"
        [program] = jobs.plan(other, [other.python, "w.py"], Path("/logs"))
        assert program.argv[0] == "/some/before/.venv/bin/mpilaunch"

    def test_ours_is_one_mpilaunch_with_the_script_but_not_its_interpreter(self):
        """The launcher is told clients, workers, servers and transport, then the script and its options."""
        variant = cases.by_names("2x1-ipc", cases.VARIANTS)[0]
        [program] = jobs.mpilaunch_plan(variant, ["python", "w.py", "--x"], Path("/logs"))
        assert Path(program.argv[0]).name == "mpilaunch"
        line = "--clients 2 --workers 2 --servers 1 --transport ipc --leaders one --log-dir /logs w.py --x"
        assert " ".join(program.argv[1:]) == line

    def test_a_variant_is_run_by_its_own_launcher(self):
        """Only the stock variant is started without mpilaunch."""
        within = [variant for variant in cases.VARIANTS if not variant.is_bare]
        names = [jobs.plan(variant, ["python", "w.py"], Path())[0].name for variant in within]
        assert names == ["scheduler"] * 2 + ["mpilaunch"] * 8


class TestRun:
    def test_a_job_that_ends_well_reports_its_cost(self, tmp_path):
        """CPU time of the processes is theirs, not that of others."""
        program = jobs.Program("busy", python("sum(range(3_000_000))"))
        usage = jobs.run([program], tmp_path, 30)
        assert 0 < usage.cpu_s < 30
        assert usage.wall_s > 0

    def test_processes_get_their_environment_and_not_that_of_another_job(self, tmp_path, monkeypatch):
        """Variables of a surrounding job do not leak in."""
        monkeypatch.setenv("DMLC_ROLE", "server")
        lines = ("import os", "assert 'DMLC_ROLE' not in os.environ and os.environ['MINE'] == '1'")
        jobs.run([jobs.Program("env", python(*lines), {"MINE": "1"})], tmp_path, 30)

    def test_ours_and_peers_get_the_same_number_of_threads(self, tmp_path, monkeypatch):
        """One each, whatever the shell of the user says."""
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
        lines = ("import os", "assert os.environ['OMP_NUM_THREADS'] == '1'")
        jobs.run([jobs.Program("threads", python(*lines))], tmp_path, 30)

    def test_the_first_failure_ends_the_others_and_shows_what_was_written(self, tmp_path):
        """A job of which one process fails does not wait for the rest."""
        fails = jobs.Program("fails", python("print('the reason')", "raise SystemExit(3)"))
        waits = jobs.Program("waits", python("import signal", "signal.pause()"))
        with pytest.raises(jobs.JobError, match=r"fails ended with code 3\n(.*\n)*fails\| the reason"):
            jobs.run([waits, fails], tmp_path, 60)

    def test_a_job_past_its_deadline_is_killed_and_named(self, tmp_path):
        """A process that ignores SIGTERM does not outlive the deadline."""
        lines = ("import signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.pause()")
        with pytest.raises(jobs.JobError, match=r"stuck: not ended within 0 s"):
            jobs.run([jobs.Program("stuck", python(*lines))], tmp_path, 0.1)

    def test_a_process_left_behind_is_an_error_and_is_ended(self, tmp_path, monkeypatch):
        """A launcher that ends before its children does not pass, not even in other sessions."""
        monkeypatch.setattr(jobs, "GRACE_S", 0.05)
        child = repr(python("import signal", "signal.pause()"))
        lines = ("import subprocess", f"print(subprocess.Popen({child}, start_new_session=True).pid)")
        with pytest.raises(jobs.JobError, match=r"leaver has ended but left the processes \[\d+\] behind"):
            jobs.run([jobs.Program("leaver", python(*lines))], tmp_path, 30)
        pid = int((tmp_path / "leaver.log").read_text())
        assert jobs._ends_within(pid, 10)


class TestSummary:
    def test_an_iteration_is_the_mean_of_what_the_workers_saw(self):
        """Workers are joined iteration by iteration, calls are divided by the number of keys."""
        merged = summary.merge_workers([{"c": worker_times(4, 10)}, {"c": worker_times(6, 20)}])["c"]
        assert merged.round_trips_ms == pytest.approx((5, 15))
        assert merged.calls_us == pytest.approx((500, 500))

    def test_ratios_are_of_jobs_of_the_same_turn(self):
        """Stock's time over ours: the median of the jobs' ratios, and their range."""
        stock = [one_case(300, 310, 320), one_case(400, 410, 420), one_case(100)]
        ours = [one_case(100, 100, 100), one_case(200, 205, 210), one_case(100)]
        rows = summary.summarize({"stock": stock, "2x1-tcp": ours})
        assert rows[1].ratios == {"stock": pytest.approx(table.Spread(1.0, 2.0, 3.1))}
        assert {"2.00", "3.10"} <= set(summary.pushpull_table(rows, 1e9, {}).split())

    @pytest.mark.parametrize(
        ("variant", "peers"),
        [
            ("2x1-tcp", {"stock", "sockets"}),
            ("2x1-encrypted@tree-ipc", {"stock", "sockets"}),
            ("1x2-ipc-async-two-calls", {"stock-ipc"}),
            ("2x1-two-calls", {"stock", "stock-ipc"}),
            ("1x2-all", {"stock", "stock-ipc"}),
            ("sockets", {"stock"}),
        ],
    )
    def test_like_is_compared_with_like(self, variant, peers):
        """TCP with TCP, ipc with ipc, and shared memory, which stock has not, with both."""
        peers_of_all = {name: [one_case(300)] for name in ("stock", "stock-ipc", "sockets")}
        repeats = {**peers_of_all, variant: [one_case(100)]}
        assert set(summary.summarize(repeats)[-1].ratios) == peers

    def test_processor_time_is_compared_as_time_is(self):
        """Ours over the peer's, job by job."""
        spent = [summary.Samples(1, 1, (1.0,), (1.0,), cpu) for cpu in (2.0, 3.0, 8.0)]
        stock = [summary.Samples(1, 1, (1.0,), (1.0,), cpu) for cpu in (1.0, None, 2.0)]
        repeats = {"stock": [{"c": each} for each in stock], "2x1": [{"c": each} for each in spent]}
        row = summary.summarize(repeats)[-1]
        assert row.cpu_ratios == {"stock": pytest.approx(table.Spread(2.0, 3.0, 4.0))}

    def test_processor_time_is_of_one_iteration_and_one_worker_has_looked(self):
        """0.3 s of the job's threads over three iterations; the table shows that and every repeat."""
        looked = {**worker_times(4, 4, 4), "load": [{"job_s": 1.0}, {"job_s": 1.3}]}
        merged = summary.merge_workers([{"c": looked}, {"c": {**worker_times(4, 4, 4), "load": []}}])
        assert merged["c"].cpu_ms == pytest.approx(100)
        rows = summary.summarize({"2x1": [merged, {"c": summary.Samples(4_000, 2, (9.0,), (1.0,))}]})
        assert [rows[0].cpu_ms, rows[0].repeats_ms] == [pytest.approx(100), pytest.approx((4, 9))]
        assert {"100.00", "4.000", "9.000"} <= set(summary.pushpull_table(rows, 1e9, {}).split())

    def test_bytes_cross_four_times(self):
        """Two workers send and receive every byte once."""
        [row] = summary.summarize({"2x1-ipc": [one_case(100)]})
        assert row.bytes_per_s == pytest.approx(4e9)
        assert row.ratios == {}

    @pytest.mark.parametrize(("trip", "said"), [(50, ">= 6.0 met"), (51, ">= 6.0 MISSED")])
    def test_a_target_is_met_or_missed(self, trip, said):
        """The verdict compares the ratio over the better peer with the target of the case."""
        peers = {"stock": [one_case(400)], "stock-ipc": [one_case(300)]}
        rows = summary.summarize({**peers, "2x1": [one_case(trip)]})
        assert [summary.verdict(row, cases.RATIO_TARGETS) for row in rows] == ["", "", said]

    def test_sockets_are_a_limit_and_no_peer(self):
        """What they reach is shown, and no verdict depends on it."""
        bare = {"stock": [one_case(300)], "sockets": [one_case(50)]}
        rows = summary.summarize({**bare, "2x1-tcp": [one_case(100)]})
        assert [summary.verdict(row, {"100MB": 2.5}) for row in rows] == ["", "", ">= 2.5 met"]
        assert {"6.00", "0.50"} <= set(summary.pushpull_table(rows, 1e9, {}).split())

    @pytest.mark.parametrize(("trip", "said"), [(110, "<= 1.1 met"), (111, "<= 1.1 MISSED")])
    def test_two_calls_are_compared_with_one_call_of_the_same_variant(self, trip, said):
        """Repeat by repeat, and the target is of the median ratio."""
        one = [one_case(100), one_case(200), one_case(100)]
        two = [one_case(trip), one_case(200), one_case(300)]
        repeats = {"2x1": [one_case(1)] * 3, "2x1-async": one, "2x1-async-two-calls": two}
        *others, row = summary.summarize(repeats)
        assert [each.over_pushpull for each in others] == [None, None]
        assert row.over_pushpull == pytest.approx(table.Spread(1.0, trip / 100, 3.0))
        assert summary.verdict(row, cases.RATIO_TARGETS) == said
        assert {"1.00", "3.00"} <= set(summary.pushpull_table([row], 1e9, {}).split())

    def test_the_table_shows_the_share_of_the_memory_bandwidth(self):
        """4 GB/s of 8 GB/s is half."""
        text = summary.pushpull_table(summary.summarize({"2x1-ipc": [one_case(100)]}), 8e9, {})
        assert "50.0%" in text.splitlines()[2]

    def test_memory_is_counted_above_what_was_there_before(self):
        """Each worker has a row; the server is reported once, by the first worker."""
        worker = {
            "bytes": 100,
            "before": {"worker": [50], "server": [10]},
            "peak": {"worker": [300], "server": [310]},
        }
        lines = summary.memory_table({"2x1-ipc": [[worker, worker]]}).splitlines()[2:]
        assert [line.split()[1] for line in lines] == ["server", "worker", "worker"]
        assert [line.split()[-4:] for line in lines[:2]] == [
            ["3.00", "<=", "3.0", "met"],
            ["2.50", "<=", "2.0", "MISSED"],
        ]


def allreduce_job(mpi: str = "MPICH", **times_us: float) -> dict:
    """Return what one job of two ranks writes for 64 MB; names have _ for a space."""
    cells = [
        {
            "bytes": 64 << 20,
            "variant": name.replace("_", " "),
            "wrong": 0,
            "seconds": us * 1e-6,
            "copy_bytes_per_s": 1e10,
        }
        for name, us in times_us.items()
    ]
    return {"mpi": mpi, "ranks": 2, "cells": cells, "missing": []}


class TestAllreduce:
    def test_peers_are_compared_within_a_job_and_jobs_with_their_median(self):
        """A job in a slow mode of MPI's does not count as a fast way to reduce."""
        slow = allreduce_job(mpi_plain=9_000, mpi_pieces=6_000, auto=3_000)
        jobs_of_three = [allreduce_job(mpi_plain=3_000, mpi_pieces=2_000, auto=1_000)] * 2 + [slow]
        row = allreduce_summary.rows_of(jobs_of_three)[2]
        assert (row.seconds, row.low, row.high) == (1e-3, 1e-3, 3e-3)
        assert row.ratios["plain"] == pytest.approx((3, 3, 3))
        assert row.ratios["mpi"] == pytest.approx((2, 2, 2))
        assert "gloo" not in row.ratios

    def test_the_best_is_found_within_each_job(self):
        """Medians over jobs, which need not be of the same job, would say 0.8."""
        times = [(4_000, 5_000), (4_000, 4_200), (6_000, 6_200)]
        jobs_of_three = [allreduce_job(mpi_plain=plain, auto=auto) for plain, auto in times]
        row = allreduce_summary.rows_of(jobs_of_three)[1]
        assert row.ratios["best"] == pytest.approx((4 / 4.2, 0.8, 6 / 6.2))

    def test_libraries_have_lines_of_their_own(self):
        """The same variant on two libraries is two lines."""
        two = [allreduce_job(auto=1_000), allreduce_job("Open MPI", auto=2_000)]
        rows = allreduce_summary.rows_of(two)
        assert [(row.mpi, row.seconds) for row in rows] == [("MPICH", 1e-3), ("Open MPI", 2e-3)]

    def test_bandwidths_are_those_of_nccl_tests(self):
        """With two ranks both are the same; half of what memory copies is half."""
        [row] = allreduce_summary.rows_of([allreduce_job(auto=(64 << 20) / 5e9 * 1e6)])
        assert row.algorithm_bandwidth == row.bus_bandwidth == pytest.approx(5e9)
        assert row.of_copy == pytest.approx(0.5)

    def test_goals_are_met_or_missed(self):
        """At 64 MB: as fast as the best peer, which is no way of ours, and nearly as the best choice."""
        peers = {"mpi_plain": 4_000, "mpi_pieces": 1_010, "gloo": 2_900, "deepspeed": 1_020}
        job = allreduce_job(**peers, shm=940, auto=1_000)
        said = allreduce_summary.goals(allreduce_summary.rows_of([job]))
        assert [line.rsplit("x ", 1)[1] for line in said] == [
            "the best peer (>= 1.00 met)",
            "the best of all variants (>= 0.95 MISSED)",
        ]

    @pytest.mark.parametrize(
        ("num_bytes", "least"),
        [(4 << 10, 0), (64 << 10, 1), (1 << 20, 1.3), (16 << 20, 1.3), (64 << 20, 1)],
    )
    def test_most_is_asked_of_some_megabytes(self, num_bytes, least):
        """Nothing of a few kilobytes."""
        assert allreduce_summary.least_ratio(num_bytes) == least


class TestMachine:
    def test_description_can_be_written_as_json(self):
        """Every figure is stored with the machine and the versions."""
        text = json.dumps(machine.describe())
        assert {"cores", "versions", "processor"} <= set(json.loads(text))

    def test_peak_is_never_below_what_is_held(self):
        """Both are read from this process, and the peak can be started anew."""
        procfs.start_new_peak(os.getpid())
        assert 0 < procfs.resident_bytes(os.getpid()) <= procfs.peak_bytes(os.getpid()) * 1.01

    def test_a_process_that_has_ended_has_no_memory(self):
        """The message says so instead of a wrong number."""
        process = subprocess.Popen(python("pass"))
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        try:
            with pytest.raises(LookupError, match="it has ended"):
                procfs.resident_bytes(process.pid)
        finally:
            process.wait(10)


@pytest.mark.parametrize("num_keys", [1, 193])
def test_a_plot_may_have_only_single_keys_or_only_models(tmp_path, num_keys):
    """Either half of the plot may stay empty."""
    drawing = pytest.importorskip("harness.pushpull_drawing", reason="needs matplotlib")
    samples = {"c": summary.Samples(4_000, num_keys, (1.0, 2.0), (10.0, 10.0))}
    drawing.draw(summary.summarize({"stock": [samples]}), 1e10, tmp_path / "new" / "out.png", [])
    assert (tmp_path / "new" / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.mxnet
def test_one_command_measures_the_stock_store(tmp_path):
    """The benchmark runs real processes, checks their sums, and writes table, JSON and plot."""
    written, plot = tmp_path / "out.json", tmp_path / "out.png"
    command = [
        sys.executable,
        str(BENCHMARKS / "pushpull.py"),
        "--variants",
        "stock",
        "--cases",
        "4KB,200KB",
    ]
    command += [
        "--quick",
        "--repeats",
        "1",
        "--allow-load",
        "--dirty",
        "--json",
        str(written),
        "--plot",
        str(plot),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("!! ")]
    assert [line.split()[0] for line in lines[2:]] == ["4KB", "200KB"]
    [run] = results.load([written]).runs
    assert (run["variant"], len(run["workers"])) == ("stock", cases.NUM_WORKERS)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_imports_is_there(script):
    """Also where it takes root, a GPU or another MPI to run it."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvstore_mpi"):
            if "mxnet" in node.module:
                pytest.importorskip("mxnet", reason="needs mxnet, which there is up to Python 3.11")
            source = importlib.util.find_spec(node.module)
            assert source is not None, node.module
            text = Path(source.origin).read_text(encoding="utf-8")
            for name in node.names:
                submodule = Path(source.origin).with_name(f"{name.name}.py")
                assert re.search(rf"\b{name.name}\b", text) or submodule.exists(), name.name
