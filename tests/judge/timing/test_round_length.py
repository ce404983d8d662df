"""Number of calls in a round: as it takes to last and as fit the memory, and more only to be timed at all."""

from types import SimpleNamespace

import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.checks import robustness
from gpu_mcp_judge.devices import cuda
from gpu_mcp_judge.numerics import random_inputs
from gpu_mcp_judge.owner import shape_judge, shape_times
from gpu_mcp_judge.timing import clock_overhead, judging_setup, rounds

MILLISECOND = 1e-3


class Calls(shape_judge.Shape):
    """A shape whose calls take a known time; a set takes a byte."""

    gated = None
    making_s = 0.0
    """What the problem's code takes to make a call's inputs; the first time, half a minute more."""

    def __init__(self, call_s: float, cost_s: float, usual: int, most: int) -> None:
        self.task, self.inputs, self.outputs = {"budget_s": 60.0}, [], []
        limits = {"max_sets": 10_000, "set_bytes": lambda *of: 1, "max_bytes": lambda: (usual, most)}
        self.device = SimpleNamespace(**limits)
        self.costs = {"candidate": clock_overhead.Cost(cost_s, 0.0)}
        self.shortest_s = self.costs["candidate"].shortest_s
        self.rounds = SimpleNamespace(close=lambda buffers: None)
        self.call_s, self.notes, self.last, self.few = call_s, {}, None, False
        self.round_s = max(10 * MILLISECOND, shape_judge.SURE * self.shortest_s)
        self.opened: list[int] = []
        self.played = 0

    def _open(self, sets: int) -> SimpleNamespace:
        self.opened.append(sets)
        return SimpleNamespace(sets=sets, made_s=0.0)

    def _play(self, buffers: SimpleNamespace) -> rounds.Round:
        self.played += 1
        buffers.made_s = self.making_s and self.making_s * buffers.sets + 30.0 * (self.played == 1)
        return rounds.Round(self.call_s * buffers.sets, MILLISECOND * buffers.sets, None)

    def sets(self) -> int:
        return self._grow(self._open(1), lambda text, done: None).sets


@pytest.mark.parametrize(
    ("call_s", "cost_s", "usual", "most", "sets"),
    [
        pytest.param(0.1 * MILLISECOND, 0.4 * MILLISECOND, 1000, 4000, 115, id="as long as is asked"),
        pytest.param(
            0.1 * MILLISECOND, 0.4 * MILLISECOND, 30, 120, 30, id="as long as memory lets it, if it can be timed so"
        ),
        pytest.param(0.1 * MILLISECOND, 0.6 * MILLISECOND, 30, 120, 42, id="longer than that, to be timed at all"),
        pytest.param(0.1 * MILLISECOND, 0.6 * MILLISECOND, 30, 30, 30, id="no longer where there is no more memory"),
        pytest.param(
            0.001 * MILLISECOND, 0.6 * MILLISECOND, 30, 120, 120, id="as long as it can be, to be told as too short"
        ),
        pytest.param(20 * MILLISECOND, 0.4 * MILLISECOND, 30, 120, 1, id="one call"),
    ],
)
def test_a_round_has_the_calls_that_it_needs(call_s, cost_s, usual, most, sets):
    shape = Calls(call_s, cost_s, usual, most)

    assert shape.sets() == sets
    assert max(shape.opened) == sets
    short = sets * call_s < shape_times.NEARLY * shape.round_s
    assert [("buffers are at their limit" in note) for note in shape.notes] == [True] * short


def test_a_round_has_no_more_calls_than_inputs_can_be_made_for_in_a_third_of_the_time():
    """By the second making: the first one is slow for once."""
    shape = Calls(0.1 * MILLISECOND, 0.4 * MILLISECOND, 1000, 4000)
    shape.making_s = 1.0

    assert shape.sets() == int(60.0 / 3 / 1.001)
    assert ["the problem's own code takes 1e+03 ms a call to make inputs" in note for note in shape.notes] == [True]
    shape.making_s, shape.played, shape.notes = 0.01, 0, {}
    assert shape.sets() == 115 and not shape.notes


def test_a_round_that_can_be_timed_is_not_made_longer_for_good_measure():
    """Of a candidate whose every round takes a tenth more than the shortest, however many calls it has."""
    shape = Calls(MILLISECOND, 0.6 * MILLISECOND, 30, 4000)
    shortest = shape_judge.SURE * shape.shortest_s
    shape._play = lambda buffers: rounds.Round(1.1 * shortest, MILLISECOND * buffers.sets, None)

    assert shape.sets() <= 30


def test_where_there_is_no_more_memory_after_all_a_round_has_the_usual_calls():
    """As a candidate or a reference may have taken some of it."""
    shape = Calls(0.1 * MILLISECOND, 0.6 * MILLISECOND, 30, 120)
    plain, refused = shape._open, []

    def opened(sets):
        if sets > 30:
            refused.append(sets)
            raise verdicts.TooLarge("too large")
        return plain(sets)

    shape._open = opened
    assert shape.sets() == 30
    assert refused == [42]


def test_a_stall_does_not_make_a_round_long_enough_to_be_timed():
    shape = Calls(0.1 * MILLISECOND, 0.6 * MILLISECOND, 30, 120)
    plain, stalls = shape._play, [0, 0, 1]

    def play(buffers):
        stalled = stalls.pop(0) if stalls else 0
        return plain(buffers)._replace(candidate_s=plain(buffers).candidate_s + MILLISECOND * stalled)

    shape._play = play
    assert shape.sets() == 42
    assert not stalls


def test_a_candidate_that_is_slow_at_new_buffers_alone_does_not_make_rounds_short():
    """As one that answers ahead does, which must learn first where the calls of a round lie."""
    shape = Calls(0.01 * MILLISECOND, 0.4 * MILLISECOND, 4000, 8000)
    plain, played = shape._play, []

    def play(buffers):
        new = not played or played[-1] is not buffers
        played.append(buffers)
        return plain(buffers)._replace(candidate_s=0.1 * MILLISECOND * buffers.sets) if new else plain(buffers)

    shape._play = play
    assert shape.sets() * shape.call_s >= shape.round_s
    assert shape.notes == {}


def test_a_round_that_a_slow_reference_keeps_short_says_so():
    shape = Calls(0.1 * MILLISECOND, 0.6 * MILLISECOND, 30, 120)
    shape._play = lambda buffers: rounds.Round(0.1 * MILLISECOND * buffers.sets, 0.58 * buffers.sets, None)

    assert shape.sets() == 34
    assert "the reference is slow" in str(shape.notes)


@pytest.mark.parametrize(
    ("call_s", "reference_s", "gated", "ungated"),
    [
        pytest.param(0.1 * MILLISECOND, 0.1 * MILLISECOND, 115, 115, id="none the fewer beside a quick reference"),
        pytest.param(0.1 * MILLISECOND, MILLISECOND, 50, 115, id="as many as it answers soon"),
        pytest.param(0.1 * MILLISECOND, 58 * MILLISECOND, 4, 115, id="enough to be interrupted in every way"),
        pytest.param(0.01 * MILLISECOND, 58 * MILLISECOND, 10, 344, id="long enough for the last word"),
        pytest.param(0.1 * MILLISECOND, 10_000 * MILLISECOND, 2, 2, id="no more than without gates"),
    ],
)
def test_a_slow_reference_answers_few_calls_where_gates_give_the_times(call_s, reference_s, gated, ungated):
    shape = Calls(call_s, 0.4 * MILLISECOND, 4000, 8000)

    def play(buffers):
        shape.reference_call_s = reference_s
        return rounds.Round(call_s * buffers.sets, reference_s * buffers.sets, None)

    shape._play, shape.few, shape.task = play, True, dict(shape.task, brief=True)
    assert shape.sets() == gated
    assert shape._begin(1)[1] == (call_s, reference_s, gated, min(4000, int(20 / reference_s)))
    shape.few = False
    assert shape.sets() == ungated


def shape_of(passes: clock_overhead.Cost) -> shape_judge.Shape:
    reference, candidate = SimpleNamespace(role="reference"), SimpleNamespace(role="candidate", prepare_s=0.0)
    device = SimpleNamespace(kind="cuda", stops_calls=False, state=dict, own_check=False)
    task = {"shapes": [{}], "inputs": [], "outputs": [], "rtol": 0, "atol": 0, "round_timeout_s": 1, "round_ms": 10}
    task |= {"max_rounds": 9, "budget_s": 1, "framework": "torch", "candidate": "library"}
    costs, log = dict.fromkeys(("candidate", "reference"), passes), SimpleNamespace(besides_s=lambda: 0.0)
    well, robust = random_inputs.Well("00" * 32), robustness.Robustness(task)
    setup = judging_setup.JudgingSetup(task, device, candidate, reference, costs, well, log)
    return shape_judge.Shape(setup, 0, 1.0, robust)


def test_rounds_last_four_times_as_long_as_an_empty_pass():
    passes = clock_overhead.Cost.of(
        [9.0, *[each * MILLISECOND for each in (1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.4, 1.5, 1.5)]]
    )
    shape = shape_of(passes)

    assert shape.shortest_s == pytest.approx(clock_overhead.COSTLY * MILLISECOND)
    assert shape.round_s == pytest.approx(max(10 * MILLISECOND, shape_judge.SURE * shape.shortest_s))


@pytest.mark.parametrize(("share", "limits"), [(0.3, (0.3, 0.6)), (0.6, (0.6, 0.6))])
def test_on_a_gpu_a_round_may_take_more_memory_to_be_timed_at_all(share, limits):
    device = object.__new__(cuda.CudaDevice)
    device.framework, device.share, device.room_bytes = "torch", share, 80 << 30

    assert [size / device.room_bytes for size in device.max_bytes()] == pytest.approx(limits)


def test_on_a_gpu_with_a_reference_on_the_cpu_what_travels_through_files_is_the_limit():
    device = object.__new__(cuda.CudaDevice)
    device.framework, device.share, device.room_bytes = "numpy", 0.3, 80 << 30

    assert device.max_bytes() == (cuda.STAGED_BYTES, cuda.STAGED_BYTES)


class Stalled(Calls):
    """A shape of short calls on a machine that stalls some rounds, the first ones of each length."""

    def __init__(self, stalls_s: list[float], spread_s: float) -> None:
        super().__init__(0.1 * MILLISECOND, 0.4 * MILLISECOND, 1000, 4000)
        self.stalls_s, self.left_s, self.played = stalls_s, [], 0
        self.costs = {"candidate": clock_overhead.Cost(0.4 * MILLISECOND, spread_s)}

    def _open(self, sets: int) -> SimpleNamespace:
        self.left_s = list(self.stalls_s)
        return super()._open(sets)

    def _play(self, buffers: SimpleNamespace) -> rounds.Round:
        self.played += 1
        stall_s = self.left_s.pop(0) if self.left_s else 0.0
        return rounds.Round(self.call_s * buffers.sets + stall_s, MILLISECOND * buffers.sets, None)


@pytest.mark.parametrize(
    ("stalls_s", "spread_s"),
    [
        pytest.param([0.02], 0.0, id="one"),
        pytest.param([0.02, 0.05, 0.04], 0.0, id="some of which no two agree"),
        pytest.param([0.02] * 6, 0.003, id="many that are alike where the clock's own cost varies"),
    ],
)
def test_stalls_make_no_short_rounds(stalls_s, spread_s):
    shape = Stalled(stalls_s, spread_s)

    assert shape.sets() == 115


@pytest.mark.parametrize(
    ("stalls_s", "played"),
    [([], 2), ([1.0], 3), ([float(2**n) for n in range(9)], 5)],
    ids=["that are alike", "of which the first is slow", "until they have taken their part of the budget"],
)
def test_long_calls_are_played_no_more_often_than_it_takes(stalls_s, played):
    shape = Stalled(stalls_s, 0.0)
    shape.call_s = 0.5

    assert shape.sets() == 1
    assert shape.played == played


def test_beside_gates_the_loop_has_as_few_calls_as_its_clock_can_tell():
    """Its times stand beside others, and a round of 10 ms took gigabytes; that it is short is no note then."""
    shape = Calls(0.01 * MILLISECOND, 0.4 * MILLISECOND, 1000, 4000)
    shape.task["framework"], shape.gated = "torch", SimpleNamespace(is_basis=lambda task: True)
    shape._shorten_rounds()

    assert shape.sets() == 256  # of 2.56 ms; asked are 1.5 times the 1.6 ms that can be told
    few = Calls(0.01 * MILLISECOND, 0.4 * MILLISECOND, 100, 100)
    few.task["framework"], few.gated = "torch", shape.gated
    few._shorten_rounds()

    assert few.sets() == 100 and not few.notes
