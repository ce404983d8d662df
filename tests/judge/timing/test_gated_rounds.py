"""Gated rounds: how many calls the queue has room for, and the doubt about a GPU that answers late."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from gpu_mcp_judge import verdicts
from gpu_mcp_judge.owner import gated_series
from gpu_mcp_judge.timing import gated_pass, gated_rounds, time_accounting

STOPPED = {"live": False, "is_launching": False}
"""Of a player whose calls all are launched before the clock runs."""


def gated(framework: str, round_s: float, laid_s: float, same_s: float = 30e-6) -> gated_rounds.GatedRounds:
    """Return rounds that were played, without the players."""
    one = gated_rounds.GatedRounds.__new__(gated_rounds.GatedRounds)
    one.device, one.busy, one.round_s = SimpleNamespace(framework=framework), {}, [round_s] * 7
    one.empty = gated_pass.Empty(6e-6, 150e-6, 200e-6, 30e-6)
    one.candidate, one.reference, one.reference_thaw_s = SimpleNamespace(**STOPPED), None, 0.0
    one.behind_s, one.laid_s, one.same_s, one.entered_s = [150e-6], [laid_s] * 7, same_s, [200e-6]
    return one


@pytest.mark.parametrize(("framework", "advice"), [("torch", "at a larger shape"), ("numpy", "with a torch reference")])
def test_a_late_answer_is_told_with_what_it_may_mean(framework, advice):
    said = gated(framework, 474e-6, 90e-6).doubt()

    assert "answered 60 us later behind new inputs than behind old ones; a round takes 474 us" in said
    assert "a tenth of that is allowed" in said and "evaluate again" in said and advice in said
    assert not gated(framework, 474e-6, 70e-6).doubt(), "40 us are less than a tenth"
    assert not gated(framework, 948e-6, 90e-6).doubt(), "of twice as many calls 60 us are, too"


def test_what_a_probe_takes_behind_old_inputs_is_no_doubt():
    """A copy of half a gigabyte before a probe made it 74 us longer on an H200, whatever the candidate did."""
    assert not gated("torch", 474e-6, 104e-6, same_s=95e-6).doubt()


@pytest.mark.parametrize(("framework", "same_s"), [("torch", 900e-6), ("numpy", gated_rounds.SWITCH_S)])
def test_old_inputs_are_laid_behind_a_gate_of_the_reference_or_believed_up_to_a_switch(framework, same_s):
    one = gated(framework, 474e-6, 90e-6)
    one.rounds, laid = SimpleNamespace(ledger=time_accounting.Ledger()), []

    def time_empty(probe, lay):
        lay()
        return gated_pass.Empty(6e-6, 150e-6, 200e-6, probe())

    player = SimpleNamespace(time_empty=time_empty)
    one.candidate, one.reference = (None, player) if framework == "torch" else (player, None)
    one.device.probe_s = lambda: 900e-6
    one.time_old_inputs(SimpleNamespace(publish=lambda: laid.append(1)))

    assert (one.same_s, laid) == (same_s, [1])


def test_an_empty_pass_has_all_that_a_round_has_before_its_gate_is_opened():
    """A swept cache alone makes the GPU come to a process 8 to 13 us later on an H200."""
    player, order = gated_pass.GatedPlayer.__new__(gated_pass.GatedPlayer), list[str]()
    player.launch = lambda calls, wait_s: order.append("launch") or {}
    player.open = lambda limit_s: order.append("open") or gated_pass.Opened(6e-6, (6e-6,), 0.0)
    player.finish = lambda reply: order.append("finish")
    note = {name: lambda name=name: order.append(name) for name in ("lay", "sweep")}
    empty = player.time_empty(lambda: order.append("probe") or 20e-6, **note)

    assert order == ["launch", "probe", "lay", "probe", "sweep", "open", "probe", "finish"] * 10
    assert empty == gated_pass.Empty(6e-6, 20e-6, 0.0, 20e-6)


def fit_beside(returns: Callable[[list[int]], bool], call_s: float = 50e-6) -> tuple[int, list[int], list[str]]:
    """Return a round's calls beside a reference that `returns` by its tries, these, and why it was left or is live."""
    one = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    tried, why, reference = list[int](), list[str](), SimpleNamespace(**STOPPED)

    def try_reference(calls: int, host_s: float) -> bool:
        tried.append(calls)
        return bool(why) or reference.live or returns(tried)

    one.rounds = SimpleNamespace(close=lambda buffers: None, task={"brief": True})
    one.gated = SimpleNamespace(
        prepare=lambda: None,
        try_launch=lambda buffers, calls, host_s: 10.5e-6,
        try_reference=try_reference,
        leave_reference=why.append,
        candidate=SimpleNamespace(**STOPPED),
        reference=reference,
    )
    one.pace, one.open = gated_series.Pace(50e-6, call_s, 230, 230), SimpleNamespace(sets=1)
    sets = one._fit(lambda wanted: (SimpleNamespace(sets=wanted), one.pace)).sets
    return sets, tried, why + ["live"] * reference.live


@pytest.mark.parametrize(
    ("kernels", "sets", "left"), [(1, 96, False), (12, 48, False), (25, 24, False), (2000, 96, True)]
)
def test_a_round_has_half_as_many_calls_until_the_queue_has_room_for_the_reference(kernels, sets, left):
    """Of calls of 10.5 us, by whose number alone a round would have 96, as where the reference has no gate at all."""
    found, tried, why = fit_beside(lambda tried: kernels * tried[-1] < 1000)

    assert found == sets
    assert bool(why) == left and tried[:3] == ([1, 1, 16] if left else [1, 16, 96])


def test_a_long_reference_that_fills_the_queue_goes_on_launching_while_the_clock_runs():
    found, tried, why = fit_beside(lambda tried: False, call_s=gated_pass.LIVE_S)

    assert (found, why) == (96, ["live"]), "and a round has no fewer calls for its sake"
    assert tried[:2] == [1, 1]


def test_of_a_player_that_goes_on_launching_the_clock_starts_first_and_its_reply_comes_last():
    """All that its host does behind the opening is in its time, and behind the last word it does nothing."""
    order, player = list[str](), gated_pass.GatedPlayer.__new__(gated_pass.GatedPlayer)
    note = lambda name, says=None: lambda *given: (order.append(name), says)[1]  # noqa: E731 - it has no name elsewhere
    words = {"open": lambda *of: order.append(f"open {of[0]}"), "begin": lambda gates: 1, "open_all": note("open all")}
    player.words = SimpleNamespace(**words, wait=lambda word, *of: order.append(f"wait {word}") or 1e9)
    acts = {each: note(each) for each in ("thaw", "freeze")}
    tell, link = lambda *of, **fields: order.append("tell"), SimpleNamespace(pending=lambda wait_s: False)
    player.player = SimpleNamespace(
        **acts, tell=tell, link=link, hear=note("hear", {"code": 0}), ask=lambda *of: order.append("ask") or {}
    )
    player.timeout_s, player.live, player.is_launching = 1.0, True, False
    launched = player.launch(1, 0.0)
    assert launched == {} and order == ["tell", "thaw", "freeze"]

    order.clear()
    opened = player.open(1.0, look=note("look"))
    first, entered, timed, end = (gated_pass.OFFSETS[each] for each in ("first", "entered", "timed", "end"))
    gate = [f"open {first}", f"wait {entered}", f"open {timed}", "thaw", f"wait {end}", "look", "freeze"]
    assert order == gate and opened.thaw_s > 0, "a player could make its stopping take long"

    order.clear()
    assert player.finish(launched) == {"code": 0}
    assert order == ["open all", "thaw", "hear", "ask", "freeze"] and not player.is_launching


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_that_waits_for_the_device_is_told_by_one_call_alone(waits):
    """As cudaFree, .item() and synchronize() do."""
    one, launched = gated_series.GatedSeries.__new__(gated_series.GatedSeries), []

    def try_launch(buffers, calls, host_s) -> float:
        launched.append(calls)
        return 0.0 if waits or calls > 1 else 10e-6

    one.rounds = SimpleNamespace(close=lambda buffers: None, task={"brief": True})
    one.gated = SimpleNamespace(
        prepare=lambda: None,
        try_launch=try_launch,
        try_reference=lambda *of: True,
        candidate=SimpleNamespace(**STOPPED),
    )
    one.pace, one.open = gated_series.Pace(50e-6, 50e-6, 230, 230), SimpleNamespace(sets=1)
    begin = lambda wanted: (SimpleNamespace(sets=wanted), one.pace)  # noqa: E731 - it has no name elsewhere

    if waits:
        with pytest.raises(gated_pass.NoGate, match="wait for the device, or launch more than its queue holds"):
            one._fit(begin)
        assert launched == [1, 1], "sixteen more would take a second to learn the same"
    else:
        assert one._fit(begin).sets == 1 and launched == [1, 16, 16, 4, 1]


@pytest.mark.parametrize(
    ("on_gpu_s", "most", "room", "sets", "confirmed"),
    [
        pytest.param(50e-6, 4, 2000, 4, 6, id="as few as a slow reference answers"),
        pytest.param(3e-6, 4, 2000, 34, 100, id="more where the launch is what takes the time"),
        pytest.param(3e-6, 1, 2000, 34, 100, id="more where the candidate sleeps beside other rounds"),
        pytest.param(2e-6, 1, 30, 30, 30, id="no more than the reference has time for"),
        pytest.param(2e-6, 400, 2000, 400, 400, id="no fewer beside a quick reference"),
        pytest.param(1e-8, 4, 2000, 512, 512, id="no more than the queue holds"),
    ],
)
@pytest.mark.parametrize("brief", [True, False])
def test_a_round_lasts_long_enough_by_the_time_on_the_gpu(on_gpu_s, most, room, sets, confirmed, brief):
    """Else an empty pass, which is taken off, would be a great part of it, or 17 us that the GPU takes by itself."""
    one = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    one.rounds = SimpleNamespace(close=lambda buffers: None, task={"brief": brief})
    one.gated = SimpleNamespace(
        prepare=lambda: None,
        try_launch=lambda *of: on_gpu_s,
        try_reference=lambda *of: True,
        candidate=SimpleNamespace(**STOPPED),
    )
    one.pace, one.open = gated_series.Pace(5e-3, 58e-3, most, room), SimpleNamespace(sets=1)

    assert one._fit(lambda wanted: (SimpleNamespace(sets=wanted), one.pace)).sets == (sets if brief else confirmed)


@pytest.mark.parametrize("fails_at", [0, 2])
def test_only_the_real_inputs_go_to_a_reference_on_the_processor(fails_at):
    """Decoys are for the candidate alone; a draw that fails leaves nothing behind for the next round."""
    buffers, drawn = SimpleNamespace(decoys=False, publish=lambda: None, untouched=lambda: True), []

    def draw(of) -> None:
        drawn.append(of.decoys)
        assert of.behind_gate, "the idle check of rounds without gates would see the candidate's own queue"
        if len(drawn) == fails_at:
            raise verdicts.ReferenceFailed("the problem's code failed to make inputs")

    one = gated("numpy", 1e-3, 0.0)
    one.rounds = SimpleNamespace(draw=draw, ledger=time_accounting.Ledger())
    one.well, one.launched = SimpleNamespace(word=lambda: 1), 1
    one.device.probe_s = lambda: 20e-6
    if fails_at:
        with pytest.raises(verdicts.ReferenceFailed):
            one.lay_inputs(buffers)
    else:
        one.lay_inputs(buffers)

    assert drawn == ([True] * fails_at or [True] * 3 + [False])
    assert not buffers.decoys and not buffers.behind_gate


def test_the_gpu_comes_back_from_the_process_that_made_inputs_before_the_copy_that_shows_them():
    """A change between processes behind the copy would look like work on new inputs."""
    one, order, probes = gated("torch", 1e-3, 0.0), [], iter([80e-6, 20e-6])

    def probe_s() -> float:
        order.append("probe")
        return next(probes)

    one.laid_s, one.device.probe_s = [], probe_s
    one.rounds = SimpleNamespace(ledger=time_accounting.Ledger())
    one.show_inputs(SimpleNamespace(publish=lambda: order.append("copy"), untouched=lambda: True), "then")

    assert (order, one.laid_s) == (["probe", "copy", "probe"], [20e-6])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
def test_no_call_can_tell_how_it_is_looked_at_and_the_reference_is_timed_when_nothing_waits(fenced, live):
    """Calls on two streams that waited at a gate halved its speed on an H200, and looked busy in two runs of three.

    What a live one launches behind its last word comes too late to be compared, and is never in the GPU's way.
    """
    one, order = gated("torch", 1e-3, 30e-6), list[str]()

    def note(name, says=None):
        return lambda *given, **named: (order.append(name), says)[1]

    def solve(buffers):
        order.append("reference")
        one.solved_behind_gate, one.reference_thaw_s = True, 1e-4
        return 2e-3

    def open_gate(buffers, look):
        order.append("open")
        look()
        return gated_pass.Opened(1e-3, (1e-3,), 0.0)

    one.well, one.reference, one.fenced, one.blocked = SimpleNamespace(word=lambda: int(not fenced)), True, 0, 0
    one.empty_s, one.round_s, one.solved_behind_gate = {"candidate": 0.0}, [], False
    one.launch, one.lay_inputs, one._solve = note("launch", {}), note("lay"), solve
    one.show_inputs, one.probe, one.open = note("show"), note("probe", 20e-6), open_gate
    one.rounds = SimpleNamespace(ledger=time_accounting.Ledger(), candidate=None)
    one.device.sweep_cache = note("sweep")
    one.candidate = SimpleNamespace(finish=note("finish", {}), launch_s=3e-3, live=live, is_launching=live)
    one.launch_s, one.empty_launch_s = [], 1e-3
    one._judge = note("judge")
    played = one.play(SimpleNamespace(sets=16, stop=note("fence"), check=note("check")))

    alike, alone = ["launch", "lay", "show", "sweep", "open"], ["probe", "reference", "probe", "check"]
    told = [*alone, "finish"] if live else ["finish", *alone]
    assert order == [*alike, "fence" if fenced else "probe", *told, "judge"]
    assert (played.reference_s, one.fenced) == (pytest.approx(2e-3 if live else 1.9e-3), int(fenced))
    assert one.launch_s == ([] if live else [pytest.approx(2e-3)])


def test_a_draw_that_fails_leaves_no_reply_for_the_next_round():
    """A reply that is still to be heard would look like one of a forked copy then."""
    one, order = gated("torch", 1e-3, 30e-6), list[str]()

    def draw(buffers) -> None:
        raise verdicts.ReferenceFailed("the problem's code failed to make inputs")

    one.well, one.blocked, one.launch_s, one.empty_launch_s = SimpleNamespace(word=lambda: 1), 0, [], 0.0
    one.launch, one.lay_inputs = lambda buffers: {}, draw
    one.candidate = SimpleNamespace(finish=lambda reply: order.append("finish"), live=True, is_launching=True)
    with pytest.raises(verdicts.ReferenceFailed):
        one.play(SimpleNamespace(sets=1))

    assert order == ["finish"]


@pytest.mark.parametrize(
    ("launch_us", "live", "timed"),
    [(10.0, ["reference"], True), (900.0, ["reference"], False), (900.0, ["candidate", "reference"], True)],
)
def test_launching_is_in_both_times_or_in_neither(launch_us, live, timed):
    """A model of 990 launches beside one of 1,100 would seem 2.5 times as fast: the one's launching is in its time."""
    series = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    series.gated, series.series = gated("torch", 8e-3, 30e-6), SimpleNamespace(samples_us=lambda: ([400.0] * 7, []))
    series.gated.ungated, series.gated.busy = "", {}
    for role in ("candidate", "reference"):
        setattr(series.gated, role, SimpleNamespace(live=role in live))
    series.launch_us = lambda: launch_us

    assert series.is_basis({"framework": "torch"}) is timed


def test_a_gpu_that_is_busy_beside_the_reference_leaves_the_times_of_a_loop():
    when = gated_rounds.BESIDE
    series = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    series.gated, series.series = gated("torch", 8e-3, 30e-6), SimpleNamespace()
    series.gated.ungated = ""

    series.gated.busy = {when: {3}, "behind the last word": {4, 5}}
    assert series.is_basis({"framework": "torch"}), "one round's may be another process"
    assert series.gated.doubt() == "the GPU was busy behind the last word, in 2 rounds"

    series.gated.busy = {when: {3, 4}}
    assert not series.is_basis({"framework": "torch"})
    assert series.is_basis({"framework": "numpy"}), "a reference on the processor is not slowed"
    assert series.gated.doubt() == f"the GPU was busy {when}, in 2 rounds"


@pytest.mark.parametrize("when", [gated_rounds.LAID, gated_rounds.OPENS])
def test_a_gpu_that_is_busy_while_calls_wait_makes_the_times_unconfirmable_and_no_others(when):
    """The reference is timed when nothing waits; a model of torch's GRU in a CUDA graph is honest and busy."""
    series = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    series.gated, series.series = gated("torch", 8e-3, 30e-6), SimpleNamespace()
    series.gated.ungated, series.gated.busy = "", {when: {3, 4}}

    assert series.is_basis({"framework": "torch"})
    assert series.gated.doubt().startswith(f"the GPU was busy {when}, in 2 rounds: a kernel runs ahead, or streams")


@pytest.mark.parametrize(
    ("samples_us", "doubt"),
    [
        ([4300.0, 4310.0, 4290.0, 4305.0, 4295.0, 4300.0, 4300.0], ""),
        ([1900.0] * 7, "the candidate's calls wait for the device, or launch more than its queue holds; from 2 ms on"),
        ([4000.0, 5100.0, 4000.0, 5100.0, 4050.0, 5000.0, 4050.0], "the time of calls that go on launching while the"),
    ],
)
def test_calls_that_launch_live_are_confirmed_if_they_are_long_and_steady(samples_us, doubt):
    series = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    series.gated, series.why = gated("torch", 4e-3, 30e-6), ""
    series.gated.candidate.live = True
    series.series = SimpleNamespace(samples_us=lambda: (samples_us, []))

    said = series.doubt()
    assert said.startswith(doubt) and bool(said) == bool(doubt)


@pytest.mark.parametrize("rounds", [{3}, {3, 4}])
def test_a_reference_that_was_timed_beside_a_busy_gpu_has_no_time_there_and_no_speed_up(rounds):
    """An addition on two streams showed 1.88 on an H200's GPU alone, and 0.843 in a loop."""
    series = gated_series.GatedSeries.__new__(gated_series.GatedSeries)
    series.gated, series.isolated = (
        gated("torch", 8e-3, 30e-6),
        SimpleNamespace(samples_s=[], doubt=lambda device_s: ""),
    )
    series.why, series.gated.ungated, series.gated.busy = "", "", {gated_rounds.BESIDE: rounds}
    series.series = SimpleNamespace(samples_us=lambda: ([18.0] * 7, [34.0] * 7), sets=110, stopped_by="half_width")

    assert ("speedup" in series.result()) == ("reference" in series.result()) == (len(rounds) < 2)
    assert series.result()["candidate"]["median_us"] == 18.0


def test_a_reference_that_waits_at_times_costs_the_candidate_no_time_behind_gates():
    """One call of it was launched behind a gate before."""
    found, tried, why = fit_beside(lambda tried: len(tried) == 1)

    assert found == 96
    assert tried == [1, 16, 16, 4, 1, 96] and len(why) == 1


def test_a_trial_launches_as_many_calls_as_it_is_asked_for_and_tells_the_time_of_one():
    one, launched = gated("torch", 1e-3, 0.0), []
    rounds_ = SimpleNamespace(ledger=time_accounting.Ledger(), lay=lambda buffers: None)
    one.rounds, one.launched, one.call_s = rounds_, 0, 50e-6
    one.empty_s = {"candidate": 10e-6}
    one.candidate = SimpleNamespace(
        launch=lambda calls, wait_s, each=False: launched.append((calls, wait_s, each)) or {},
        open=lambda limit_s: gated_pass.Opened(50e-6, (50e-6,), 0.0),
        finish=lambda reply: reply,
        **STOPPED,
    )
    buffers = SimpleNamespace(sets=16)

    assert one.try_launch(buffers, 4, 0.25) == pytest.approx(10e-6)
    assert one.try_launch(buffers, 16, 0.25) == pytest.approx(2.5e-6)
    assert launched == [(4, pytest.approx(0.25 + 4 * 4 * 50e-6), False), (16, pytest.approx(0.25 + 64 * 50e-6), False)]
    one.reference, one.reference_call_s = one.candidate, 1e-3
    assert one.try_reference(4, 0.25) and launched.pop() == (4, pytest.approx(0.25 + 4 * 4 * 1e-3), False)
    one.launch(buffers, 3, each=True)
    one.launch(buffers)
    assert [(calls, each) for calls, _, each in launched[2:]] == [(3, True), (16, False)]
