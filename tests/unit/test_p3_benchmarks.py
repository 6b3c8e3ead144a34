"""The pure parts of the benchmarks over slow links: bounds, models, bins, scores and tables."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from harness import bound, models, netns, p3_cell, p3_summary, p3_variants, utilisation  # noqa: E402

Layer = bound.Layer
TWO_LAYERS = [Layer(100, 1.0, 2.0), Layer(300, 1.0, 2.0)]
SMALL = models.Model("small", (models.Tensor(1_000, 3.0), models.Tensor(10, 0.0), models.Tensor(7, 1.0)), 4)

random_layers = st.lists(
    st.builds(Layer, st.integers(1, 1_000), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8
)


def point(**changes) -> p3_cell.Point:
    """Return a point whose ideal is 1.2 s."""
    fields = {
        "model": "resnet50",
        "hosts": 4,
        "ratio": 1.2,
        "bits_per_s": 8e6,
        "bytes_per_s": 1e6,
        "latency_s": 0.0,
        "compute_s": 1.0,
        "bound_s": 1.2,
        "fifo_s": 1.5,
    }
    return p3_cell.Point(**{**fields, **changes})


def run(variant: str, seconds: float, busy: float = 0.5) -> p3_cell.Run:
    """Return a run with this time of an iteration."""
    return p3_cell.Run(variant, seconds, (seconds,), 0.1, busy, 0.3, 0.2, 10.0, 10.0 + seconds)


class TestBound:
    @pytest.mark.parametrize(("hosts", "crossing"), [(1, 0), (2, 100), (4, 150), (8, 175)])
    def test_a_link_carries_twice_what_is_not_its_own(self, hosts, crossing):
        """Pushes and answers each cross for all but the part that stays in the host."""
        assert bound.bytes_through_link(100, hosts) == crossing

    def test_one_server_for_everything_answers_all_other_hosts(self):
        """With all bytes on one server, its link carries an answer to each of the three others."""
        assert bound.bytes_through_link(100, 4, largest_share=100) == 300

    def test_ample_network_leaves_the_compute_and_the_first_layer(self):
        """Nothing hides the first layer, which is ready last and needed first: 6 s of compute and 1 s."""
        assert bound.lower_bound(TWO_LAYERS, 2, 100.0) == pytest.approx(7.0)

    def test_scarce_network_is_the_bound(self):
        """8 s of network start when the last layer's backward is done, and end with 3 s of its compute."""
        assert bound.lower_bound(TWO_LAYERS, 2, 50.0) == pytest.approx(11.0)

    def test_first_come_first_served_starts_forward_when_all_has_crossed(self):
        """2 s of backward, 4 s of network, then 2 s of forward."""
        assert bound.fifo_bound(TWO_LAYERS, 2, 100.0) == pytest.approx(8.0)

    def test_what_cannot_be_hidden_delays_the_first_layer(self):
        """Latencies and one slice count where nothing else is the bottleneck."""
        assert bound.lower_bound(TWO_LAYERS, 2, 1e9, first_delay_s=0.25) == pytest.approx(6.25)

    def test_placement_counts_by_prefix(self):
        """With four hosts, 100 bytes on one server need 3 s where 150 bytes would need 1.5 s."""
        shares = [100, 150]
        assert bound.network_seconds(TWO_LAYERS, 4, 100.0, shares) == pytest.approx([3.0, 7.0])
        assert bound.network_seconds(TWO_LAYERS, 4, 100.0) == pytest.approx([1.5, 6.0])

    def test_greedy_placement_fills_the_emptiest_server(self):
        """Slices of 10 bytes on two servers: one each, then 10, 20 and 30 beside 20."""
        assert bound.largest_shares([10, 10, 30], 10, 2) == [10, 10, 30]

    def test_the_rate_of_a_ratio_makes_the_network_that_much_slower(self):
        """At the rate for 1.5, all bytes need 1.5 times the 6 s of compute."""
        rate = bound.bytes_per_s_for(1.5, TWO_LAYERS, 4)
        assert bound.network_seconds(TWO_LAYERS, 4, rate)[-1] == pytest.approx(9.0)

    @given(random_layers, st.integers(2, 8), st.floats(1, 1e4))
    def test_no_order_beats_the_bound(self, layers, hosts, rate):
        """The bound is at least compute and network each, and first come first served does not beat it."""
        least = bound.lower_bound(layers, hosts, rate)
        assert least >= bound.compute_seconds(layers) - 1e-9
        assert least >= bound.network_seconds(layers, hosts, rate)[-1] - 1e-9
        assert least <= bound.fifo_bound(layers, hosts, rate) * (1 + 1e-9)


class TestModels:
    def test_no_tensor_vanishes_when_a_model_shrinks(self):
        """Sizes are divided and rounded up."""
        assert SMALL.elements() == [250, 3, 2]

    def test_times_add_up_and_backward_takes_twice_as_long(self):
        """Compute is dealt by work; one third of it is forward."""
        layers = SMALL.layers(2.0)
        assert bound.compute_seconds(layers) == pytest.approx(2.0)
        assert sum(layer.forward_s for layer in layers) == pytest.approx(2.0 / 3)
        assert [layer.forward_s * 2 for layer in layers] == pytest.approx([1.0, 0.0, 1.0 / 3])
        assert [layer.num_bytes for layer in layers] == [1_000, 12, 8]

    def test_the_translation_model_begins_with_its_heaviest_tensor(self):
        """37 tensors, 27.7 million parameters, a third of them in the first layer; lookups are no work."""
        tensors = models.sockeye().tensors
        sizes = [tensor.elements for tensor in tensors]
        assert (len(sizes), sum(sizes), sizes[0]) == (37, 27_733_021, 8_801_792)
        assert max(sizes) == sizes[0]
        assert tensors[0].work == 0
        assert sum(models.work_shares(tensors)) == pytest.approx(1.0)

    def test_bounds_of_stock_shrink_with_the_model(self):
        """A sixteenth of the model has a sixteenth of stock's big-array bound."""
        cut = models.Granularity.of(models.Model("any", SMALL.tensors, 16))
        assert cut == models.Granularity(12_500, 10_000, 62_500)

    def test_slices_of_a_model_at_full_size_are_the_defaults(self):
        """Nothing is made smaller."""
        whole = models.Granularity.of(models.Model("any", SMALL.tensors, 1))
        assert whole == models.Granularity(50_000, 40_000, 1_000_000)

    @pytest.mark.mxnet
    @pytest.mark.parametrize(("full_size", "scale"), [(False, 4), (True, 1)])
    def test_models_are_as_large_as_they_are_only_if_the_user_says_so(self, full_size, scale):
        """By a word that all commands take."""
        from harness import p3_cli  # noqa: PLC0415  its models import mxnet

        parser = p3_cli.make_p3_parser("any", "Any.", "sockeye")
        words = ["--full-size"] if full_size else []
        [model] = p3_cli.models_of(p3_cli.completed(parser, parser.parse_args(words)))
        assert (model.name, model.scale) == ("sockeye", scale)

    @pytest.mark.mxnet
    @pytest.mark.parametrize(
        ("name", "tensors", "elements"),
        [("resnet50", 193, 25_575_912), ("inceptionv3", 284, 23_834_568), ("vgg19", 38, 143_667_240)],
    )
    def test_the_zoo_has_the_published_sizes(self, name, tensors, elements):
        """Trainable parameters only; every convolution and dense layer has work, nothing else has."""
        from harness import zoo  # noqa: PLC0415  imports mxnet

        model = zoo.load(name)
        assert (len(model.tensors), sum(tensor.elements for tensor in model.tensors)) == (tensors, elements)
        assert sum(models.work_shares(model.tensors)) == pytest.approx(1.0)

    @pytest.mark.mxnet
    def test_work_of_a_picture_is_that_of_the_literature(self):
        """VGG-19 takes 19.6 thousand million multiplications for a picture."""
        from harness import zoo  # noqa: PLC0415  imports mxnet

        assert sum(tensor.work for tensor in zoo.load("vgg19").tensors) == pytest.approx(19.63e9, rel=1e-3)


class TestVariants:
    def test_stock_is_told_the_sizes_unless_it_runs_as_it_comes(self):
        """The bound shrinks with the model, but not where stock is left alone."""
        cut = models.Granularity(1, 2, 3)
        by_name = {variant.name: variant.environment(cut) for variant in p3_variants.VARIANTS}
        sizes = {"MXNET_KVSTORE_BIGARRAY_BOUND": "3", "MXNET_KVSTORE_SLICE_THRESHOLD": "2"}
        assert by_name["stock"] == sizes
        assert by_name["stock-as-is"] == {}
        best = {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"}
        assert by_name["stock-p3-wm10"] == {**sizes, **best}

    def test_ours_differ_in_their_schedule_alone(self):
        """The three modes get the same slices, window and transport."""
        cut = models.Granularity(1, 2, 3)
        own = [variant.environment(cut) for variant in p3_variants.USUAL if not variant.is_stock]
        assert [each.pop("KVMPI_SCHEDULE") for each in own] == ["fifo", "slicing", "p3"]
        assert own[0] == own[1] == own[2]
        assert own[0]["KVMPI_SLICE_ELEMENTS"] == "1"


class TestUtilisation:
    def test_late_samples_are_spread_over_the_bins_they_cover(self):
        """A counter grows evenly between two samples."""
        samples = [(0.0, 0, 0), (1.0, 100, 10), (3.0, 300, 50)]
        bins = utilisation.bins_between(samples, 0.5, 3.0, 0.5)
        assert bins.sent == pytest.approx((50.0,) * 5)
        assert bins.received == pytest.approx((5.0, 10.0, 10.0, 10.0, 10.0))

    def test_parts_of_steps_are_medians_of_all_steps(self):
        """Of steps of any length; what is sent in the first half of each, and received in one step only."""
        samples = [
            (0.0, 0, 0),
            (1.0, 10, 0),
            (2.0, 10, 0),
            (4.0, 50, 90),
            (6.0, 50, 90),
            (6.5, 60, 90),
            (7.0, 60, 90),
        ]
        sent, received = utilisation.over_steps(samples, [0.0, 2.0, 6.0, 7.0], 2)
        assert sent == pytest.approx([20.0, 0.0])
        assert received == pytest.approx([0.0, 0.0])

    def test_shares_are_of_the_rate_of_the_link(self):
        """80 bits per second carry 10 bytes in a bin of one second: full, idle, in between, full again."""
        bins = utilisation.Bins(1.0, (10.0, 0.0, 4.0, 10.0), (0.0, 0.0, 4.0, 10.0))
        assert utilisation.shares_of(bins, 80.0) == utilisation.Shares(0.6, 0.35, 0.25, 0.5, 0.25)


class TestSummary:
    def test_score_is_the_ideal_over_the_median(self):
        """Three repeats of 1.5, 1.2 and 1.3 s beside an ideal of 1.2 s; stock took 1.56 s."""
        runs = [run("ours-p3", 1.5), run("stock", 1.56), run("ours-p3", 1.2), run("ours-p3", 1.3)]
        ours, stock = p3_summary.summarize(point(), runs)
        assert ours.score == pytest.approx(1.2 / 1.3)
        assert (ours.iteration_s.low, ours.iteration_s.high, ours.counted) == (1.2, 1.5, 3)
        assert (ours.over_stock.median, stock.over_stock.median) == (
            pytest.approx(1.04),
            1.0,
        )  # of the first turn

    def test_runs_that_measured_the_processors_do_not_count(self):
        """A run above the limit is left out; where none is left there is no figure, but the reason."""
        runs = [run("ours-p3", 1.3), run("ours-p3", 9.0, busy=0.9), run("stock", 2.0, busy=0.9)]
        ours, stock = p3_summary.summarize(point(), runs)
        assert (ours.iteration_s.median, ours.counted, ours.measured) == (1.3, 1, 2)
        assert (stock.iteration_s, stock.score, ours.over_stock) == (None, None, None)
        assert p3_summary.CPU_BOUND in p3_summary.table([stock])
        assert "(2.000)" in p3_summary.table([stock]).split()
        assert "1.300 (9.000)" in p3_summary.table([ours])

    @pytest.mark.parametrize(
        ("changes", "target"),
        [
            ({}, 0.97),
            ({"hosts": 2}, 0.96),
            ({"hosts": 8}, 0.95),
            ({"ratio": 0.3, "bound_s": 1.0}, 0.99),
            ({"ratio": 0.3}, 0.97),
        ],
    )
    def test_target_depends_on_hosts_and_on_what_is_scarce(self, changes, target):
        """Where compute dominates one per cent may be lost, but not where a heavy first layer shows."""
        assert p3_summary.score_target(point(**changes)) == target

    def test_only_ours_with_priorities_has_a_target(self):
        """The others are there to compare with."""
        rows = p3_summary.summarize(point(), [run("ours-p3", 1.25), run("ours-fifo", 1.25)])
        assert [p3_summary.verdict(row) for row in rows] == [">= 0.97 MISSED", ""]

    def test_gains_are_over_the_faster_setting_of_stock(self):
        """At each point the faster of stock's P3; then best and worst over the points."""
        rows = [
            *p3_summary.summarize(
                point(), [run("stock-p3", 1.6), run("stock-p3-wm10", 1.5), run("ours-p3", 1.25)]
            ),
            *p3_summary.summarize(point(ratio=2.0), [run("stock-p3-wm10", 2.0), run("ours-p3", 2.5)]),
        ]
        best, worst = p3_summary.goals(rows)
        assert "1.200x (>= 1.15 met) at best" in best
        assert "0.800x (>= 1.0 MISSED) at worst" in worst

    def test_who_is_ahead_does_not_count_where_both_are_as_good_as_ideal(self):
        """Ours is behind by 0.1 per cent at the first point, and ahead at the second."""
        ideal = p3_summary.summarize(point(), [run("stock-p3", 1.2), run("ours-p3", 1.2012)])
        other = p3_summary.summarize(point(ratio=2.0), [run("stock-p3", 1.5), run("ours-p3", 1.25)])
        assert "1.200x (>= 1.0 met) at worst" in p3_summary.goals([*ideal, *other])[1]
        [only] = p3_summary.goals(ideal)
        assert "at best" in only

    def test_the_default_is_compared_with_the_best_of_the_sweep(self):
        """1.3 s beside a best of 1.25 s is 96 per cent of its speed."""
        sizes = {100: run("ours-p3", 1.4), 200: run("ours-p3", 1.25), 300: run("ours-p3", 1.3)}
        rows = {size: p3_summary.summarize(point(), [own])[0] for size, own in sizes.items()}
        lines = p3_summary.slices_table({point(): rows}, {point(): 300}).splitlines()
        [default] = [line for line in lines if "(default)" in line]
        assert "0.962" in default
        assert [line for line in lines if ">= 0.95 met" in line] == [default]

    def test_utilisation_of_a_run_that_measured_the_processors_is_not_told(self):
        """The rule of the scores holds for shares of a link, too."""
        bins = utilisation.Bins(1.0, (1e6, 1e6), (0.0, 1e6))
        told, hidden = (
            p3_summary.utilisation_table([p3_summary.Traffic(point(), run("ours-p3", 1.2, busy), bins)])
            for busy in (0.5, 0.9)
        )
        assert "1.000" in told
        assert p3_summary.CPU_BOUND in hidden
        assert "1.000" not in hidden


class TestPermission:
    def test_missing_tools_are_told_with_their_package(self, monkeypatch):
        """The message says what to install."""
        monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else tool)
        with pytest.raises(netns.NetworkError, match=r"^tc not found: install the Debian package iproute2"):
            netns.check_tools()

    def test_other_users_are_told_that_it_needs_root(self, monkeypatch):
        """No command of iproute2 is tried first."""
        monkeypatch.setattr(shutil, "which", lambda tool: tool)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(netns.NetworkError, match="need root"):
            netns.check_tools()


@pytest.mark.mxnet
class TestReplay:
    class LonelyStore:
        """A store of one worker, whose sums are wrong for one key."""

        rank = 0
        num_workers = 1

        def __init__(self, wrong_key: int = -1) -> None:
            self.wrong_key = wrong_key
            self.priorities: list[int] = []

        def init(self, key, value) -> None:
            """Take a key."""

        def _barrier(self) -> None:
            """Be alone."""

        def pushpull(self, key, values, out, priority) -> None:
            self.priorities.append(priority)
            out[0][:] = values[0] + (key == self.wrong_key)

    def replay(self, store, monkeypatch):
        import p3_worker  # noqa: PLC0415  imports mxnet

        monkeypatch.setattr(p3_worker, "job_pids", lambda: [os.getpid()])
        plan = p3_worker.Plan([5, 1, 30], [0.001] * 3, [0.002] * 3, warmup=1, iterations=2)
        return p3_worker.Replay(store, plan).run()

    def test_every_iteration_is_timed_and_pushes_last_to_first(self, monkeypatch):
        """Three marks around two iterations of 9 ms; the first layer has the greatest priority."""
        store = self.LonelyStore()
        measured = self.replay(store, monkeypatch)
        begin, _, end = measured["marks"]
        assert end - begin >= 2 * 0.009 - 0.001
        assert store.priorities == [-2, -1, 0] * 3

    def test_a_wrong_sum_ends_the_run(self, monkeypatch):
        """The message names the iteration, the key and the worker."""
        with pytest.raises(ValueError, match=r"iteration 0, key 1, worker 0: got 4.0 to 4.0, not 3"):
            self.replay(self.LonelyStore(wrong_key=1), monkeypatch)
