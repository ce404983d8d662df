"""End of a series: enough rounds were played."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gpu_mcp_judge.devices import device
from gpu_mcp_judge.owner.shape_times import ShapeTimes
from gpu_mcp_judge.timing import clock_overhead, machine_state, rounds, series, time_accounting

US = 1e-6


def played(times, **task):
    """Play rounds whose times are known, the reference always a millisecond."""
    limit_s = task.pop("limit_s", 1e9)
    goal = series.Goal.of({"max_rounds": 200, "budget_s": 60, **task}, limit_s)
    one = series.Series(goal, time_accounting.Ledger(), 10, 1)

    def play(buffers, count):
        return rounds.Round(times(count), 1e-3, None)

    one.measure(None, play, lambda text, done: None)
    return one


def test_equal_times_end_the_rounds_as_soon_as_there_are_enough_of_them():
    one = played(lambda count: 1e-3, half_width=0.005)

    assert (one.stopped_by, len(one.played)) == ("half_width", series.LEAST_ROUNDS)
    assert one.samples_us()[0] == [100.0] * series.LEAST_ROUNDS


@pytest.mark.parametrize(("wanted", "stopped_by"), [(0.1, "half_width"), (0.005, "rounds")])
def test_rounds_go_on_until_the_interval_is_as_narrow_as_asked(wanted, stopped_by):
    one = played(lambda count: 1e-3 * (1 + 0.2 * (count * 7 % 11) / 11), half_width=wanted)

    assert one.stopped_by == stopped_by
    assert (len(one.played) == 200) == (stopped_by == "rounds")


def test_what_the_judge_may_cost_ends_the_rounds_but_not_before_an_interval_can_be_given():
    one = played(lambda count: 1e-3 * (1 + count % 2), half_width=0.005, limit_s=0)

    assert (one.stopped_by, len(one.played)) == ("time", series.LEAST_ROUNDS)


def test_one_round_that_takes_much_longer_than_all_may_is_enough():
    one = played(lambda count: 1e-3, half_width=0.005, budget_s=1e-9)

    assert (one.stopped_by, len(one.played)) == ("time", 1)
    assert one.note.startswith("only 1 rounds")


class Alone:
    """Times behind gates, of as many microseconds a call as a test says."""

    def __init__(self, call_us: float, doubted: str = "", launched_us: float = 90.0) -> None:
        self.launched_us = launched_us
        self.call_us, self.doubted, self.gated = call_us, doubted, SimpleNamespace(ungated="")
        self.events: Any = None

    def live_text(self) -> str:
        return ""

    def is_basis(self, task: dict[str, Any]) -> bool:
        return "basis" not in task

    def doubt(self) -> str:
        return self.doubted

    def launch_us(self) -> float:
        return self.launched_us

    def samples(self) -> dict[str, Any]:
        return {"candidate_us": [self.call_us] * 5, "empty_us": {"candidate": 5.0}, "calls_per_round": 10}

    def result(self) -> dict[str, Any]:
        times = {"candidate": {"median_us": self.call_us}, "reference": {"median_us": 2 * self.call_us}}
        return {**times, "half_width": 0.001, "unconfirmable": self.doubted, "stopped_by": "rounds", "speedup": 2.0}


def times_beside(alone: Alone, **task: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the result of calls of 100 us in a loop beside those behind gates, and the notes on both."""
    notes: dict[str, None] = {}
    result: dict[str, Any] = {}
    one = device.Device()
    one.label = "a GPU without a data sheet"
    setup = SimpleNamespace(
        task={"framework": "torch", **task}, device=one, costs={"candidate": clock_overhead.NO_COST}
    )
    times = ShapeTimes(cast("Any", setup), 0, notes)
    times.add(played(lambda count: 1e-3), result, {}, cast("Any", alone))
    return result, [each for each in notes if "loop" in each or "launch" in each]


@pytest.mark.parametrize(
    ("alone_us", "note"),
    [
        (94.0, ""),
        (30.0, "launch-bound: the GPU is busy 30 of 100 us a call"),
        (1600.0, "no time in a loop: calls share work there (100 us each, on the GPU alone 1600 us)"),
    ],
)
def test_calls_that_are_faster_in_a_loop_than_the_gpu_can_be_have_no_time_in_a_loop(alone_us, note):
    result, notes = times_beside(Alone(alone_us))

    assert result["candidate"]["median_us"] == alone_us
    assert ("in_loop" in result) is (alone_us < 1000)
    assert notes == [note] * bool(note)


@pytest.mark.parametrize(
    ("alone_us", "note", "doubt"),
    [
        (94.0, "", ""),
        (109.0, "", ""),
        (30.0, "launch-bound: the GPU is busy 30 of 100 us a call", ""),
        (120.0, "", "a call takes 100 us in a loop, 120 us on the GPU alone and 90 us to launch: "),
    ],
)
def test_a_loop_whose_time_ranks_has_the_gpu_s_beside_it_and_is_doubted_where_it_is_less(alone_us, note, doubt):
    result, notes = times_beside(Alone(alone_us), basis="call")

    assert (result["basis"], result["candidate"]["median_us"], result["speedup"]) == ("call", 100, 1)
    assert (result["on_gpu"]["candidate"]["median_us"], result["on_gpu"]["speedup"]) == (alone_us, 2)
    assert notes == [note] * bool(note) and "in_loop" not in result
    assert result["unconfirmable"].startswith(doubt) and bool(result["unconfirmable"]) == bool(doubt)


def test_a_loop_is_doubted_whose_calls_take_less_than_launching_them_behind_a_gate():
    """As of a candidate that answers many calls by one launch, and sees where there is a gate."""
    doubted, _ = times_beside(Alone(30.0, launched_us=310.0), basis="call")
    believed, _ = times_beside(Alone(30.0, launched_us=290.0), basis="call")

    assert doubted["unconfirmable"].startswith("a call takes 100 us in a loop, 30 us on the GPU alone and 310 us to")
    assert not believed["unconfirmable"]


@pytest.mark.parametrize("doubted", ["", "calls share work"])
def test_times_by_events_rank_with_both_others_beside_them_and_what_gates_doubt(doubted):
    alone, by_events = (
        Alone(30.0, doubted),
        {"candidate": {"median_us": 60}, "half_width": 0.01, "unconfirmable": "late"},
    )
    kept = {"candidate_us": [60.0] * 9, "calls_per_round": 23}
    alone.events = SimpleNamespace(result=lambda device_us: by_events, samples=lambda: kept)
    result, notes = times_beside(alone, basis="kernelbench")

    assert (result["basis"], result["candidate"]["median_us"], result["event_samples"]) == ("kernelbench", 60, kept)
    assert result["on_gpu"]["candidate"]["median_us"] == 30 and result["in_loop"]["candidate"]["median_us"] == 100
    assert result["unconfirmable"] == (doubted or "late") and notes == [
        "launch-bound: the GPU is busy 30 of 100 us a call"
    ]


def test_a_loop_whose_time_ranks_is_doubted_as_gates_are_and_has_none_far_below_the_gpu_s():
    result, _ = times_beside(Alone(94.0, "calls share work"), basis="call")
    assert result["candidate"]["median_us"] == 100 and result["unconfirmable"] == "calls share work"

    result, notes = times_beside(Alone(160.0), basis="call")
    assert result["candidate"] is None and "speedup" not in result
    assert notes == ["no time in a loop: calls share work there (100 us each, on the GPU alone 160 us)"]


class Slow(device.Device):
    """A device that takes 5 ms to say how it is, as NVML may."""

    def state(self):
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.005:
            pass
        return {"steal_s": 1.5}


def test_a_machine_that_takes_long_to_say_how_it_is_is_looked_at_less_often():
    watch = machine_state.Watch(Slow())
    found = []
    for _ in range(2 * watch.every):
        watch.before()
        found.append(watch.after() is not None)

    assert watch.every >= 5
    assert found == ([True] + [False] * (watch.every - 1)) * 2


def test_rounds_that_were_not_looked_at_are_not_called_undisturbed():
    state = {"before": {"steal_s": 1.0, "cpu_mhz": 3000}, "after": {"steal_s": 1.0, "cpu_mhz": 3000}}
    robbed = {"before": {"steal_s": 1.0}, "after": {"steal_s": 1.01, "cpu_mhz": 2000}}

    assert machine_state.summary([None, None]) == ("", [[], []])
    assert machine_state.summary([state, None])[0] == "processor 3000 MHz, nothing unusual in 1 rounds looked at"
    text, marks = machine_state.summary([state, robbed, state])
    assert text.startswith("1 of 3 rounds at another clock (cpu), 1 of 3 rounds with CPU time stolen")
    assert [len(mine) for mine in marks] == [0, 2, 0]


def test_the_candidate_s_own_clock_counts_as_long_as_the_judge_s_confirms_it():
    one = played_by_two_clocks(0.02, 0.0215)

    assert one.gap() == pytest.approx(0.075)
    assert one.unconfirmable() == ""
    assert one.samples_us()[0] == pytest.approx([2000.0] * len(one.played))
    assert one.evidence()["outside_us"] == pytest.approx([2150.0] * len(one.played))


@pytest.mark.parametrize("own_s", [0.02, 0.002])
def test_a_time_that_the_judge_s_clock_does_not_confirm_is_the_judge_s(own_s):
    one = played_by_two_clocks(own_s, 0.0225)

    assert "the limit is 10 %" in one.unconfirmable()
    assert one.samples_us()[0] == pytest.approx([2250.0] * len(one.played))


def test_some_rounds_that_a_busy_machine_delayed_change_nothing():
    delayed = [0.021, 0.05, 0.021, 0.3, 0.021, 0.021, 0.021]
    one = played_by_two_clocks(0.02, *delayed)

    assert one.unconfirmable() == ""
    assert sorted(one.samples_us()[0])[: len(delayed) - 2] == pytest.approx([2000.0] * (len(delayed) - 2))


def test_one_that_lies_in_fewer_than_half_of_its_rounds_gains_no_more_than_one_that_always_does():
    lies = [0.001, 0.02, 0.001, 0.02, 0.001, 0.02, 0.02]
    one = played_by_two_clocks(lies, *[0.0215] * len(lies))

    assert one.unconfirmable() == ""
    assert min(one.samples_us()[0]) == pytest.approx(2150.0 / (1 + series.ALLOWED))


def played_by_two_clocks(own_s, *outside_s):
    """Return a series of a candidate that says it takes `own_s`, by turns if several, by the judge's `outside_s`."""
    told_s = own_s if isinstance(own_s, list) else [own_s]
    goal = series.Goal.of({"max_rounds": series.LEAST_ROUNDS, "budget_s": 60}, 1e9)
    one = series.Series(goal, time_accounting.Ledger(), 10, 1)

    def play(buffers, count):
        return rounds.Round(told_s[count % len(told_s)], 1e-3, None, outside_s=outside_s[count % len(outside_s)])

    one.measure(None, play, lambda text, done: None)
    return one
