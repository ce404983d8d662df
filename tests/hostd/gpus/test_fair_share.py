"""Weights, logins that speak for others, gaps, drains: the order of those who wait, without any process."""

import json
import os
from pathlib import Path

import pytest

from gpu_mcp_server.hostd.gpus.drain import DrainFiles
from gpu_mcp_server.hostd.gpus.fair_share import HALF_LIFE_S, FairShare, Policy, ShareOwner
from gpu_mcp_server.hostd.gpus.gpu_queue import NO_GAPS_S, GpuState
from gpu_mcp_server.hostd.gpus.login_policy import policy
from gpu_mcp_server.hostd.gpus.runtime_history import ENOUGH, MARGIN
from tests.hostd.gpus.test_gpu_queue import A, B, Bench

TEAM, OTHER = 1000, 1001


def served_s(bench: Bench, people: dict[tuple[int, str], float], rounds: int) -> dict[tuple[int, str], float]:
    """Let everybody want one GPU all the time, for a second each; return the seconds that each has got."""
    got = dict.fromkeys(people, 0.0)
    now = 0.0
    for _ in range(rounds):
        waiting = {(r.uid, r.user) for r in bench.queue.waiting.values()}
        for uid, user in people.keys() - waiting:
            bench.want(now, uid=uid, user=user, weight=people[uid, user])
        (number,) = bench.pump(now)
        request = bench.queue.leases[number].request
        now += 1.0
        bench.leave(number, now)
        got[request.uid, request.user] += 1.0
    return got


def test_shares_follow_the_weights():
    bench = Bench(A)
    bench.queue.shares.policy = Policy((TEAM,))
    got = served_s(bench, {(TEAM, "ann"): 1.0, (TEAM, "bob"): 3.0}, 400)
    assert got[TEAM, "bob"] == pytest.approx(300, abs=6)


def test_users_of_a_login_that_speaks_for_others_are_owners_like_any_other():
    people = {(TEAM, "ann"): 1.0, (TEAM, "bob"): 1.0, (TEAM, "cat"): 1.0, (OTHER, "dan@laptop"): 1.0}
    believed, doubted = Bench(A), Bench(A)
    believed.queue.shares.policy = Policy((TEAM,))
    assert served_s(believed, people, 400) == pytest.approx(dict.fromkeys(people, 100), abs=3)
    got = served_s(doubted, people, 400)
    assert got[OTHER, "dan@laptop"] == pytest.approx(200, abs=3), "otherwise a login's share is one, whoever it names"
    assert got[TEAM, "ann"] == pytest.approx(67, abs=3)


def test_a_login_cannot_give_itself_weight_but_the_host_can():
    people = {(TEAM, "ann"): 50.0, (OTHER, "dan"): 1.0}
    bench = Bench(A)
    assert served_s(bench, people, 200)[TEAM, "ann"] == pytest.approx(100, abs=3)
    bench = Bench(A)
    bench.queue.shares.policy = Policy((), {OTHER: 4.0})
    assert served_s(bench, people, 200)[OTHER, "dan"] == pytest.approx(160, abs=4)


@pytest.mark.parametrize("mode", ["windowed", "shared"])
def test_who_shares_a_gpu_pays_its_part_of_the_time_and_who_is_alone_on_it_all(mode: str):
    bench = Bench(A)
    bench.queue.most_windowed = 4
    first = bench.want(0.0, mode=mode, uid=TEAM)
    assert bench.pump(0.0) == [first]
    second = bench.want(10.0, mode=mode, uid=OTHER)
    assert bench.pump(10.0) == [second]
    bench.leave(first, 20.0)
    bench.pump(25.0)  # the queue charges holders also when it orders waiting jobs
    (lease,) = bench.queue.leases.values()
    bench.queue.charge(30.0)
    assert lease.charged_s == pytest.approx(5 + 10), "the job hears of it"
    bench.leave(second, 40.0)
    used = [bench.queue.shares.gpu_seconds_of((uid, ""), 40.0) for uid in (TEAM, OTHER)]
    assert used == pytest.approx([10 + 5, 5 + 20], rel=0.01), "40 s of one GPU, as by its clock"


def test_what_is_held_counts_before_its_end():
    bench = Bench(A, B)
    assert bench.pump(0.0) == [] and bench.want(0.0, count=2, uid=TEAM) in bench.pump(0.0)
    bench.queue.charge(30.0)
    assert bench.queue.shares.gpu_seconds_of((TEAM, ""), 30.0) == pytest.approx(60), "the next broker knows of it"


def test_what_was_used_outlives_the_broker_and_decays():
    shares, who = FairShare(), ShareOwner(TEAM, "ann")
    shares.charge(who, 100.0, 50.0)
    after = FairShare()
    after.restore(json.loads(json.dumps(shares.dump_state(50.0))), HALF_LIFE_S, 7.0)
    assert after.gpu_seconds_of((TEAM, "/ann"), 7.0) == pytest.approx(50.0)
    for junk in ([[1, "", float("nan")]], [["x", "", 1]], [[1]], 5):
        with pytest.raises((ValueError, TypeError)):
            after.restore(junk, 0.0, 7.0)


class Gap(Bench):
    """Two GPUs; jobs of kind `long` took 10 s, of kind `short` 1 s. A long one holds A; who wants both waits."""

    def __init__(self) -> None:
        super().__init__(A, B)
        for kind, length in (("long", 10.0), ("short", 1.0)):
            for n in range(ENOUGH):
                number = self.want(0.0, kind=kind, names=(A,), user=kind)
                assert self.pump(100.0 * n) == [number]
                self.leave(number, 100.0 * n + length)
        self.long = self.want(1000.0, kind="long", names=(A,), user="long")
        assert self.pump(1000.0) == [self.long]
        self.both = self.want(1001.0, count=2, user="head")


def test_a_short_job_fits_the_gap_before_who_waits_for_more():
    bench = Gap()
    bench.pump(1001.0)
    short = bench.want(1002.0, kind="short", user="short")
    assert bench.pump(1002.0) == [short]
    assert bench.held(short) == (B,)
    bench.leave(short, 1003.0)
    bench.leave(bench.long, 1010.0)
    assert bench.pump(1010.0) == [bench.both], "as soon as if nobody had been let in"


@pytest.mark.parametrize("more", [{"kind": "short"}, {"limit_s": MARGIN}])
def test_what_might_not_end_in_time_is_not_let_into_a_gap(more):
    for now, fits in ((1002.0, True), (1010.0 - MARGIN + 0.1, False)):
        bench = Gap()
        bench.pump(1001.0)
        number = bench.want(now, user="short", **more)
        assert (bench.pump(now) == [number]) == fits


@pytest.mark.parametrize("more", [{"kind": "long"}, {"kind": "new"}, {}, {"limit_s": 60.0}])
def test_long_and_unknown_jobs_do_not_get_before_who_waits(more):
    bench = Gap()
    bench.pump(1001.0)
    bench.want(1002.0, user="long", **more)
    assert bench.pump(1002.0) == []


def test_without_knowing_the_holder_there_is_no_gap():
    bench = Gap()
    bench.queue.leases[bench.long].request.kind = "never seen"
    bench.want(1002.0, kind="short", user="short")
    assert bench.pump(1002.0) == []


def test_who_overran_a_gap_is_given_none_for_a_while():
    bench = Gap()
    bench.pump(1001.0)
    short = bench.want(1002.0, kind="short", user="short")
    assert bench.pump(1002.0) == [short]
    bench.leave(bench.long, 1010.0)
    bench.leave(short, 1012.0)
    assert bench.pump(1012.0) == [bench.both]
    bench.leave(bench.both, 1013.0)
    for now, let_in in ((1020.0, False), (1020.0 + NO_GAPS_S, True)):
        holder = bench.want(now, kind="long", names=(A,), user="long")
        assert bench.pump(now) == [holder]
        both = bench.want(now, count=2, user="head")
        again = bench.want(now, limit_s=0.5, user="short")
        granted = bench.pump(now)
        assert (again in granted) == let_in
        for number in (holder, both, again):
            bench.leave(number, now + 10.0)


def test_a_drained_host_begins_nothing_and_the_line_stays_as_it_is(tmp_path: Path):
    bench, drains = Bench(A), DrainFiles(str(tmp_path))
    bench.queue.shut = lambda uid: drains.drain_reason(os.geteuid())
    first, second = bench.want(0.0), bench.want(1.0)
    assert bench.pump(1.0) == [first]
    drains.begin("new driver\n", "ann")
    bench.leave(first, 2.0)
    assert bench.pump(2.0) == []
    why = bench.queue.why(bench.queue.waiting[second], bench.queue.waiting_in_order(2.0), 2.0)
    assert why.startswith("the host is being drained by ann since ") and why.endswith(": new driver?")
    drains.end()
    drains.end()
    assert bench.pump(3.0) == [second]


def test_only_root_and_a_login_itself_drain_for_it(tmp_path: Path):
    me = os.geteuid()
    (tmp_path / f"drain-{me + 1}").write_text("{}")
    assert DrainFiles(str(tmp_path)).drain_reason(me + 1) == "", "written by somebody else"
    (tmp_path / f"drain-{me}").write_text("no JSON")
    assert "being drained by somebody" in DrainFiles(str(tmp_path)).drain_reason(me)


def test_the_host_s_policy_is_believed_only_where_others_cannot_write(tmp_path: Path):
    file = tmp_path / "pool.json"
    assert policy(str(file)) == Policy()
    file.write_text('{"speaks_for_others": ["daemon", "nobody-of-this-name", 5], "weights": {"daemon": 2, "bin": "x"}}')
    file.chmod(0o644)
    found = policy(str(file))
    assert found == Policy((0, 1), {1: 2.0})
    file.chmod(0o666)
    assert policy(str(file)) == Policy()


def test_only_gpus_that_are_taken_beside_all_leases_must_be_looked_at_again_and_again():
    bench = Bench(A, B)
    holders = [bench.want(), bench.want()]
    assert bench.pump() == holders
    bench.want(1.0)
    assert bench.pump(1.0) == [] and not bench.queue.beside, "who holds them says when they are free"
    bench.leave(holders[0], 2.0)
    bench.looks[A] = GpuState("processes of the last job are still ending")
    assert bench.pump(2.0) == [] and bench.queue.beside
