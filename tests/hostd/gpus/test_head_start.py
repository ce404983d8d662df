"""Starts ahead of the turn: whatever comes, nobody's jobs keep another owner's from the GPU."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.hostd.gpus.fair_share import MAX_KEPT, Policy
from gpu_mcp_server.hostd.gpus.gpu_queue import GpuState, Queue, Request
from gpu_mcp_server.hostd.gpus.head_start import IMPORT_CORES, LATE_S, OTHER_CORES, START_S, most_starting

GPU = "GPU-a"
TELL_S = 1.0
"""The broker says once a second who may start."""
LONGEST_IMPORT_S, LONGEST_RUN_S = 12.0, 20.0
TEAM = 7
"""Login of a team's server, which speaks for its people."""


@dataclasses.dataclass
class Job:
    """One job of the model: when it comes, how long it imports (never ends where `hangs`), how long it runs."""

    uid: int
    user: str
    comes: float
    imports: float
    runs: float
    hangs: bool = False
    dies: bool = False
    number: int = 0
    starts: float | None = None
    granted: float | None = None
    ended: bool = False

    @property
    def owner(self) -> tuple[int, str]:
        return (self.uid, self.user if self.uid in (0, TEAM) else "")


def jobs_of(owners, **more):
    return st.builds(
        lambda owner, **rest: Job(owner[0], owner[1], **rest),
        owner=st.sampled_from(owners),
        comes=st.integers(0, 60).map(float),
        imports=st.floats(0.0, LONGEST_IMPORT_S),
        runs=st.floats(0.5, LONGEST_RUN_S),
        **more,
    )


HONEST = [(1, "ann"), (1, "bob"), (TEAM, "cid"), (TEAM, "dan")]
HOSTILE = [(2, "eve"), (2, "x1"), (2, "x2"), (3, ""), (TEAM, "mal")]


class Host:
    """One GPU, its queue, and jobs by the second."""

    def __init__(self, jobs: list[Job], watched: list[Job]) -> None:
        self.queue = Queue(lambda name, mode: GpuState())
        self.queue.shares.policy = Policy(speakers=(0, TEAM))
        self.queue.starts.most = most_starting(8)
        self.jobs = dict(enumerate(sorted(jobs, key=lambda j: j.comes), 1))
        for number, job in self.jobs.items():
            job.number = number
        self.now = 0.0
        self.idle_s: dict[int, float] = {}
        """For each of those watched that wait: for how long the GPU has been idle meanwhile, without a break."""
        self.most_idle_s = 0.0
        self.watched = {job.number for job in watched}

    def step(self) -> None:
        now, queue = self.now, self.queue
        for job in self.jobs.values():
            if job.comes == now:
                queue.waiting[job.number] = Request(
                    job.number, (GPU,), 1, "exclusive", job.uid, job.user, since=now, ready=False
                )
            elif job.granted is not None and not job.ended and now - job.granted >= job.runs:
                job.ended = True
                queue.release(job.number, now)
        near = queue.near_turn(queue.waiting_in_order(now), now)
        for number in near:
            job = self.jobs[number]
            job.starts = now if job.starts is None else job.starts
        for number in list(queue.waiting):
            job = self.jobs[number]
            if job.starts is None or job.hangs:
                continue
            if now - job.starts >= job.imports:
                if job.dies:
                    job.ended = True
                    queue.release(number, now)
                else:
                    queue.waiting[number].ready = True
        first = {}
        for request in queue.waiting_in_order(now):
            if request.ready:
                first.setdefault((request.uid, request.user), request)
        for grant in queue.grant_ready(now):
            job = self.jobs[grant.request.number]
            assert first[(job.uid, job.user)].number == job.number, "a later one of the same person came first"
            job.granted = now
        for number in list(queue.waiting):
            job = self.jobs[number]
            if number in self.watched:
                self.idle_s[number] = 0.0 if queue.leases else self.idle_s.get(number, 0.0) + TELL_S
                self.most_idle_s = max(self.most_idle_s, self.idle_s[number])
        self.now += TELL_S


@settings(max_examples=100, deadline=None)
@given(
    st.lists(jobs_of(HONEST), min_size=1, max_size=8),
    st.lists(jobs_of(HOSTILE, hangs=st.booleans(), dies=st.booleans()), max_size=14),
)
def test_jobs_that_are_never_ready_neither_idle_the_gpu_for_others_nor_starve_them(honest, hostile):
    host = Host([*honest, *hostile], honest)
    longest = (len(honest) + len(hostile)) * (LONGEST_RUN_S + LONGEST_IMPORT_S + 3 * TELL_S) + 120.0
    while not all(job.ended for job in honest):
        host.step()
        assert host.most_idle_s <= LONGEST_IMPORT_S + 2 * TELL_S, "the GPU is idle while an innocent job waits"
        assert host.now <= longest, "somebody starves"


@settings(max_examples=40, deadline=None)
@given(st.lists(jobs_of(HONEST[:1], hangs=st.booleans()), min_size=1, max_size=10))
def test_hanging_jobs_of_one_s_own_hold_up_the_others_no_longer_than_the_limit_of_a_start(jobs):
    host = Host(jobs, [job for job in jobs if not job.hangs])
    hanging = sum(job.hangs for job in jobs)
    while not all(job.ended or job.hangs for job in jobs):
        host.step()
        # Each hanging one may hold a start for START_S.
        assert host.most_idle_s <= hanging * (START_S + 2 * TELL_S) + LONGEST_IMPORT_S + 2 * TELL_S


@pytest.mark.parametrize(("cores", "jobs"), [(1, 1), (4, 1), (7, 2), (8, 2), (9, 3), (16, 3), (256, 3)])
def test_no_more_start_at_once_than_there_are_cores_beside_a_timed_run(cores, jobs):
    assert most_starting(cores) == jobs


def waiting(queue: Queue, number: int, uid: int, **more) -> Request:
    request = Request(number, (GPU,), 1, "exclusive", uid=uid, since=float(number), **{"ready": False, **more})
    queue.waiting[number] = request
    return request


def near(queue: Queue, now: float) -> set[int]:
    return queue.near_turn(queue.waiting_in_order(now), now)


def test_one_owner_s_jobs_leave_the_others_their_starts():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 3
    for number in range(1, 9):
        waiting(queue, number, uid=1)
    assert near(queue, 9.0) == {1, 2, 3}
    waiting(queue, 9, uid=2)
    waiting(queue, 10, uid=2)
    assert near(queue, 10.0) == {1, 2, 3, 9}
    waiting(queue, 11, uid=3)
    assert near(queue, 11.0) == {1, 2, 3, 9, 11}, "what the first owner began when it was alone counts once"


def test_however_many_owners_there_are_the_first_in_line_start_and_the_next_as_those_have_their_turn():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 3
    jobs = [waiting(queue, number, uid=number) for number in range(1, 65)]
    for job in jobs:
        job.since = 64.0
    assert near(queue, 64.0) == near(queue, 64.0) == {1, 2, 3}
    jobs[0].ready = True
    assert near(queue, 70.0) == {1, 2, 3}, "enough are ready or start"
    assert [g.request.number for g in queue.grant_ready(70.0)] == [1]
    assert near(queue, 70.0) == {2, 3, 4, 5}, "nobody ahead is ready, so one more than three start"


def test_lines_of_several_gpus_share_the_cores():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most, queue.starts.cores = 3, 16
    for number in range(1, 61):
        waiting(queue, number, uid=1).names = tuple(sorted({f"GPU-{number % 8}", f"GPU-{number // 8}"}))
    most = (16 - OTHER_CORES) // IMPORT_CORES
    assert len(near(queue, 60.0)) == most + 1, "and one as those have waited"
    assert len(near(queue, 60.0 + LATE_S)) == most + 2


def test_while_nobody_ahead_is_ready_one_more_starts_ever_later():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 2
    for number in range(1, 65):
        waiting(queue, number, uid=number)
    started = [len(near(queue, 64.0 + (1 + step) * LATE_S)) for step in range(20)]
    assert started[0] == 3, "two, and one as those have waited"
    assert all(later - earlier in (0, 1) for earlier, later in itertools.pairwise(started))
    assert started[-1] == 8, "after 1, 1, 2, 3, 4 and 5 times LATE_S"


def test_of_those_that_start_late_an_owner_s_comes_first_whose_last_start_is_longest_ago():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 1
    waiting(queue, 1, uid=1)
    for number in range(2, 6):
        waiting(queue, number, uid=2)
    waiting(queue, 6, uid=3)
    assert near(queue, 7.0) == {1, 2}
    queue.release(2, 7.0)
    assert near(queue, 7.0 + LATE_S) == {1, 6}


def test_of_more_owners_than_are_kept_those_are_forgotten_whose_last_start_is_longest_ago():
    queue = Queue(lambda name, mode: GpuState())
    for number in range(1, MAX_KEPT + 3):
        waiting(queue, number, uid=number)
        assert near(queue, 1.0 + number) == {number}
        queue.release(number, 1.0 + number)
    assert list(queue.starts._last) == [(uid, "") for uid in range(3, MAX_KEPT + 3)]


def test_who_was_to_start_long_ago_and_is_not_ready_lets_the_next_of_its_owner_start():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 1
    waiting(queue, 1, uid=1)
    waiting(queue, 2, uid=1)
    assert near(queue, 5.0) == {1}
    assert near(queue, 5.0 + START_S) == {1}
    assert near(queue, 6.0 + START_S) == {1, 2}


def test_those_that_are_ready_count_so_that_no_more_start_than_are_needed():
    queue = Queue(lambda name, mode: GpuState())
    queue.starts.most = 1
    waiting(queue, 1, uid=1, ready=True)
    waiting(queue, 2, uid=1)
    assert near(queue, 9.0 + START_S) == {1}


def test_nobody_starts_on_a_host_that_is_closed_to_its_login():
    queue = Queue(lambda name, mode: GpuState())
    queue.shut = lambda uid: "drained" if uid == 1 else ""
    waiting(queue, 1, uid=1)
    waiting(queue, 2, uid=2)
    assert near(queue, 9.0) == {2}


def test_who_has_gpus_granted_and_gives_them_back_without_end_pays_for_it():
    queue = Queue(lambda name, mode: GpuState())
    waiting(queue, 1, uid=1, ready=True)
    waiting(queue, 2, uid=2, ready=True)
    assert [g.request.number for g in queue.grant_ready(3.0)] == [1]
    queue.take_back(1, 7.5)
    assert [g.request.number for g in queue.grant_ready(7.5)] == [2]
