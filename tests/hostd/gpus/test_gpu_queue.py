"""The order of those who wait, without any process: time and the GPUs' state are given."""

import random

import pytest

from gpu_mcp_server.hostd.gpus.gpu_locks import PROCESSOR
from gpu_mcp_server.hostd.gpus.gpu_matching import choose_gpus
from gpu_mcp_server.hostd.gpus.gpu_queue import AGE_S, MAX_SHARERS, GpuState, Queue, Request

A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"


class Bench:
    """A queue whose GPUs are as the test says."""

    def __init__(self, *names: str) -> None:
        self.names = names or (A,)
        self.looks: dict[str, GpuState] = {}
        self.queue = Queue(lambda name, mode: self.looks.get(name, GpuState()))
        self.numbers = iter(range(1, 10**6))

    def want(self, now: float = 0.0, mode: str = "exclusive", count: int = 1, **more) -> int:
        number = next(self.numbers)
        names = more.pop("names", self.names)
        self.queue.waiting[number] = Request(number, tuple(names), count, mode, since=now, **more)
        return number

    def pump(self, now: float = 0.0) -> list[int]:
        return [grant.request.number for grant in self.queue.grant_ready(now)]

    def held(self, number: int) -> tuple[str, ...]:
        return self.queue.leases[number].names

    def leave(self, number: int, now: float = 0.0) -> None:
        self.queue.release(number, now)


def test_one_user_is_served_in_the_order_of_arrival():
    bench = Bench(A)
    first, second, third = (bench.want(now) for now in (0.0, 0.1, 0.2))
    assert bench.pump(1.0) == [first]
    assert bench.pump(1.0) == []
    bench.leave(first, 2.0)
    assert bench.pump(2.0) == [second]
    bench.leave(second, 3.0)
    assert bench.pump(3.0) == [third]


def test_who_is_not_ready_is_passed_over_and_keeps_its_place():
    bench = Bench(A)
    importing = bench.want(0.0, ready=False)
    alone = bench.queue.why(bench.queue.waiting[importing], bench.queue.waiting_in_order(0.0), 0.0)
    assert alone == "its own processes are not ready"
    late, last = bench.want(0.1), bench.want(0.2)
    assert bench.pump(1.0) == [late]
    request = bench.queue.waiting[importing]
    why = bench.queue.why(request, bench.queue.waiting_in_order(1.0), 1.0)
    assert why == "its own processes are not ready; GPU-a is held by a job of uid 0 for 0 s"
    assert request.claim == ()
    request.ready = True
    bench.leave(late, 2.0)
    assert bench.pump(2.0) == [importing]
    bench.leave(importing, 3.0)
    assert bench.pump(3.0) == [last]


def test_jobs_with_windows_share_a_gpu_with_their_like_alone_and_not_too_many():
    bench = Bench(A)
    bench.queue.most_windowed = 2
    two = [bench.want(mode="windowed") for _ in range(2)]
    shared, third, alone = bench.want(0.1, mode="shared"), bench.want(0.2, mode="windowed"), bench.want(0.3)
    assert bench.pump(1.0) == two
    bench.leave(two[0], 2.0)
    assert bench.pump(2.0) == []  # who shares without windows would run in the others', and is not passed for ever
    bench.leave(two[1], 3.0)
    assert bench.pump(3.0) == [shared]
    late = bench.want(3.5, mode="windowed")
    bench.leave(shared, 4.0)
    assert bench.pump(4.0) == [third]
    bench.leave(third, 5.0)
    assert bench.pump(5.0) == [alone]
    bench.leave(alone, 6.0)
    assert bench.pump(6.0) == [late]


def test_jobs_with_windows_share_gpus_as_far_as_the_host_has_cores():
    bench = Bench(A, B, C)
    bench.queue.most_windowed = 4
    numbers = [bench.want(mode="windowed") for _ in range(9)]
    granted = bench.pump(1.0)
    assert granted == numbers[:4]
    assert {bench.held(number)[0] for number in granted} == {A, B, C}
    bench = Bench(A, B, C)
    bench.queue.most_windowed = 1
    numbers = [bench.want(mode="windowed") for _ in range(9)]
    assert bench.pump(1.0) == numbers[:3], "one a GPU in any case"


def test_jobs_with_windows_spread_over_gpus_and_sharers_fill_one():
    for mode, used in (("windowed", {A, B}), ("shared", {A})):
        bench = Bench(A, B)
        bench.queue.most_windowed = 2
        numbers = [bench.want(mode=mode) for _ in range(2)]
        assert bench.pump(1.0) == numbers
        assert {name for number in numbers for name in bench.held(number)} == used


def test_a_stranger_on_a_gpu_matters_to_windows_too():
    bench = Bench(A)
    bench.looks[A] = GpuState("", (77,))
    bench.want(mode="windowed", foreign="wait")
    assert bench.pump(1.0) == []


def test_who_used_less_comes_before_who_came_first():
    bench = Bench(A)
    greedy = [bench.want(0.0, uid=1) for _ in range(3)]
    assert bench.pump(0.0) == greedy[:1]
    late = bench.want(9.0, uid=2)
    bench.leave(greedy[0], 10.0)
    assert bench.pump(10.0) == [late]
    bench.leave(late, 11.0)
    assert bench.pump(11.0) == [greedy[1]]


def test_people_who_share_a_login_share_alike():
    bench = Bench(A)
    greedy = [bench.want(0.0, uid=1, user="ann") for _ in range(2)]
    assert bench.pump(0.0) == greedy[:1]
    other = bench.want(5.0, uid=1, user="bob")
    bench.leave(greedy[0], 10.0)
    assert bench.pump(10.0) == [other]


def test_names_that_one_user_invents_do_not_lengthen_the_share():
    bench = Bench(A)
    first = bench.want(0.0, uid=1, user="x0")
    assert bench.pump(0.0) == [first]
    for n in range(1, 5):
        bench.want(1.0, uid=1, user=f"x{n}")
    modest = bench.want(2.0, uid=2)
    bench.leave(first, 60.0)
    assert bench.pump(60.0) == [modest]


def test_a_long_queue_of_one_s_own_buys_little():
    bench = Bench(A)
    flood = [bench.want(0.0, uid=1) for _ in range(100)]
    now = 0.0
    for number in flood[:50]:
        assert bench.pump(now) == [number]
        now += 10.0
        bench.leave(number, now)
    late = bench.want(now, uid=2)
    assert bench.pump(now) == [late]


def test_sharers_fill_a_gpu_before_they_begin_another():
    bench = Bench(A, B)
    sharers = [bench.want(mode="shared") for _ in range(MAX_SHARERS + 1)]
    assert bench.pump() == sharers
    assert {bench.held(n) for n in sharers[:MAX_SHARERS]} == {bench.held(sharers[0])}
    assert bench.held(sharers[-1]) != bench.held(sharers[0])


def test_no_more_jobs_share_the_processor_than_it_has_cores():
    """A job's calls have a limit by the clock: one of three on two cores could miss it, and be right alone."""
    bench = Bench(PROCESSOR)
    bench.queue.most_on_processor = 2
    sharers = [bench.want(mode="shared") for _ in range(3)]
    assert bench.pump() == sharers[:2]
    bench.leave(sharers[0])
    assert bench.pump() == [sharers[2]]


def test_who_wants_to_be_alone_stops_new_sharers():
    bench = Bench(A)
    old = bench.want(0.0, "shared")
    assert bench.pump(0.0) == [old]
    alone = bench.want(1.0)
    young = bench.want(2.0, "shared")
    assert bench.pump(2.0) == []
    assert "held back" in bench.queue.why(bench.queue.waiting[young], bench.queue.waiting_in_order(2.0), 2.0)
    bench.leave(old, 3.0)
    assert bench.pump(3.0) == [alone]
    bench.leave(alone, 4.0)
    assert bench.pump(4.0) == [young]


def test_who_wants_several_is_not_starved_by_takers_of_one():
    bench = Bench(A, B)
    one, two = bench.want(0.0), bench.want(0.0)
    assert bench.pump(0.0) == [one, two]
    both = bench.want(1.0, count=2)
    later = bench.want(2.0)
    bench.leave(one, 3.0)
    assert bench.pump(3.0) == [], "what is free is kept for who wants both"
    bench.leave(two, 4.0)
    assert bench.pump(4.0) == [both]
    bench.leave(both, 5.0)
    assert bench.pump(5.0) == [later]


def test_a_gpu_that_nobody_ahead_needs_is_given_away():
    bench = Bench(A, B, C)
    one = bench.want(0.0, names=(A,))
    assert bench.pump(0.0) == [one]
    bench.want(1.0, count=2, names=(A, B))
    assert bench.pump(1.0) == []
    small = bench.want(2.0, names=(B, C))
    assert bench.pump(2.0) == [small]
    assert bench.held(small) == (C,)


def test_classes_come_in_order_and_who_waits_long_rises():
    bench = Bench(A)
    holder = bench.want(0.0)
    assert bench.pump(0.0) == [holder]
    background = bench.want(1.0, priority="background")
    batch = bench.want(2.0, priority="batch")
    interactive = bench.want(3.0)
    order = [r.number for r in bench.queue.waiting_in_order(4.0)]
    assert order == [interactive, batch, background]
    bench.want(2 * AGE_S + 1.0)
    assert bench.queue.waiting_in_order(2 * AGE_S + 3.0)[0].number == background


def test_newcomers_without_end_do_not_starve_a_heavy_user():
    bench = Bench(A)
    heavy = bench.want(0.0, uid=1)
    bench.pump(0.0)
    bench.leave(heavy, 600.0)
    again, now, served = bench.want(600.0, uid=1), 600.0, False
    for uid in range(2, 4000):
        new = bench.want(now, uid=uid)
        granted = bench.pump(now)
        served = served or again in granted
        now += 5.0
        for number in granted:
            bench.leave(number, now)
        bench.leave(new, now)
        if served:
            return
    pytest.fail("never served")


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({A: [B], B: [A], C: [D], D: [C]}, {A, B}),
        ({A: [], B: [C, D], C: [B, D], D: [B, C]}, {B, C}),
        ({A: [B], B: [A, C], C: [B]}, {A, B}),
    ],
)
def test_gpus_that_must_be_joined_are(links, expected):
    assert set(choose_gpus([A, B, C, D], 2, links)) == expected


def test_gpus_that_are_not_joined_are_not_given():
    assert choose_gpus([A, B, C], 3, {A: [B], B: [A, C], C: [B]}) == []
    bench = Bench(A, B, C)
    links = {A: [B], B: [A], C: []}
    taken = bench.want(names=(A,))
    assert bench.pump() == [taken]
    pair = bench.want(count=2, links=links)
    assert bench.pump() == []
    bench.leave(taken)
    assert bench.pump() == [pair]
    assert set(bench.held(pair)) == {A, B}


@pytest.mark.parametrize(("policy", "expected"), [("wait", (B,)), ("other", (B,)), ("warn", (A,))])
def test_strangers_on_a_gpu(policy, expected):
    bench = Bench(A, B)
    bench.looks[A] = GpuState("", (4711,))
    assert bench.want(foreign=policy) in bench.pump()
    assert bench.held(1) == expected


@pytest.mark.parametrize(("policy", "granted"), [("wait", False), ("other", True), ("warn", True)])
def test_strangers_on_the_only_gpu(policy, granted):
    bench = Bench(A)
    bench.looks[A] = GpuState("", (4711,))
    number = bench.want(foreign=policy)
    grants = bench.queue.grant_ready(0.0)
    assert [g.request.number for g in grants] == [number] * granted
    said = grants[0].notes[0] if granted else bench.queue.why(bench.queue.waiting[number], [], 0.0)
    assert "4711" in said


def test_the_wait_is_foretold_by_what_was_seen():
    bench = Bench(A)
    first = bench.want(0.0)
    bench.pump(0.0)
    waiting = bench.want(1.0)
    order = bench.queue.waiting_in_order(1.0)
    assert bench.queue.standing(bench.queue.waiting[waiting], order, 1.0).wait_s is None, "nothing is known yet"
    bench.leave(first, 20.0)
    assert bench.pump(20.0) == [waiting]
    next_one, after = bench.want(21.0), bench.want(22.0)
    order = bench.queue.waiting_in_order(25.0)
    standings = [bench.queue.standing(bench.queue.waiting[n], order, 25.0) for n in (next_one, after)]
    assert [(s.position, s.wait_s) for s in standings] == [(1, 15.0), (2, 35.0)]
    late = [bench.queue.standing(bench.queue.waiting[n], order, 40.0) for n in (next_one, after)]
    assert [s.wait_s for s in late] == [None, None], "the holder takes longer than any did"


def test_a_gpu_whose_end_cannot_be_foretold_is_claimed_after_one_that_is_free_soon():
    bench = Bench(A, B)
    for name, now in ((A, 0.0), (B, 8.0)):
        bench.want(now, names=(name,), limit_s=10.0)
        assert len(bench.pump(now)) == 1
    waiting = bench.queue.waiting[bench.want(12.0)]
    bench.pump(12.0)

    assert waiting.claim == (B,)


def test_an_idle_holder_is_asked_to_leave_once_and_only_if_it_is_in_the_way():
    bench = Bench(A, B)
    idle = bench.want(0.0, names=(A,))
    bench.pump(0.0)
    bench.queue.leases[idle].idle_since, bench.queue.leases[idle].idle_s = 1.0, 5.0
    served = bench.want(2.0)
    assert bench.pump(2.0) == [served], "there is another GPU"
    assert bench.queue.leases_to_reclaim(9.0) == []
    bench.want(9.0, names=(A,))
    bench.pump(9.0)
    assert bench.queue.leases_to_reclaim(5.5) == []
    assert bench.queue.leases_to_reclaim(9.0) == [idle]
    assert bench.queue.leases_to_reclaim(9.5) == []


def test_who_could_not_use_a_grant_is_next_again():
    bench = Bench(A)
    first, second = bench.want(0.0), bench.want(1.0)
    assert bench.pump(2.0) == [first]
    bench.queue.take_back(first, 2.0)
    bench.looks[A] = GpuState("taken by somebody without a broker")
    assert bench.pump(3.0) == []
    bench.looks.clear()
    assert bench.pump(4.0) == [first]
    assert second in bench.queue.waiting


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_no_gpu_is_given_twice_and_everybody_is_served(seed):
    chance = random.Random(seed)
    bench = Bench(A, B, C, D)
    now, unserved, ends = 0.0, set(), {}
    for step in range(600):
        now += chance.expovariate(2.0)
        if step < 400:
            names = chance.sample((A, B, C, D), chance.randint(1, 4))
            count = chance.randint(1, len(names))
            mode = chance.choice(("exclusive", "shared"))
            unserved.add(bench.want(now, mode, count, names=names, uid=chance.randint(1, 3)))
        for number in [n for n, end in ends.items() if end <= now]:
            del ends[number]
            bench.leave(number, now)
        for number in [n for n in unserved if n in bench.queue.waiting and chance.random() < 0.01]:
            bench.leave(number, now)  # killed while it waited
            unserved.discard(number)
        for number in bench.pump(now):
            unserved.discard(number)
            ends[number] = now + chance.expovariate(1.0)
        for name in (A, B, C, D):
            on = [x for x in bench.queue.leases.values() if name in x.names]
            assert len(on) <= MAX_SHARERS
            assert len(on) <= 1 or not any(x.request.is_exclusive for x in on)
    while unserved:
        now += 5.0
        for number in list(ends):
            del ends[number]
            bench.leave(number, now)
        granted = bench.pump(now)
        assert granted, "somebody waits and nobody is served"
        unserved -= set(granted)
        ends.update(dict.fromkeys(granted, now))
