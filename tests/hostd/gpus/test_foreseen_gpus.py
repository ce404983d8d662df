"""Starts ahead of the turn on hosts with several GPUs: each is for GPUs that the job will have and for no others."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.hostd.gpus.fair_share import Policy
from gpu_mcp_server.hostd.gpus.gpu_queue import SOON_S, GpuState, Queue, Request
from gpu_mcp_server.hostd.gpus.head_start import START_S

GPUS = ("GPU-a", "GPU-b", "GPU-c")
A, B, C = GPUS
TEAM = 7
"""Login of a team's server, which speaks for its people."""
LONGEST_IMPORT_S, LONGEST_RUN_S = 12.0, 20.0


def queue_of(cores: int = 64) -> Queue:
    queue = Queue(lambda name, mode: GpuState())
    queue.cores = cores
    return queue


def wait(queue: Queue, number: int, names=GPUS, **more) -> Request:
    queue.waiting[number] = Request(number, tuple(names), 1, "exclusive", **{"since": float(number), **more})
    return queue.waiting[number]


def importing(queue: Queue, number: int, **more) -> Request:
    return wait(queue, number, ready=False, **more)


def tell(queue: Queue, now: float) -> dict[int, tuple[str, ...]]:
    """Return for which GPUs each may start that may."""
    near = queue.near_turn(queue.waiting_in_order(now), now)
    return {number: queue.waiting[number].foreseen for number in near}


def hold(queue: Queue, number: int, name: str, now: float, **more) -> None:
    wait(queue, number, [name], since=now, **more)
    assert [g.request.number for g in queue.grant_ready(now)] == [number]


def test_jobs_that_start_on_an_idle_host_start_for_different_gpus():
    queue = queue_of()
    for number in (1, 2, 3, 4):
        importing(queue, number)
    told = tell(queue, 5.0)
    assert sorted(told[number] for number in (1, 2, 3)) == [(A,), (B,), (C,)]
    assert told[4] == (A,)
    for number, foreseen in told.items():
        queue.narrow(number, foreseen)
    assert tell(queue, 6.0).keys() == told.keys()
    importing(queue, 5)
    assert tell(queue, 7.0)[5] == (B,)


def test_a_job_that_has_the_choice_leaves_a_gpu_to_who_starts_for_it():
    queue = queue_of()
    importing(queue, 1)
    queue.narrow(1, tell(queue, 2.0)[1])
    wait(queue, 2)
    (grant,) = queue.grant_ready(3.0)
    assert queue.waiting[1].names == (A,) and grant.names == (B,)
    queue.waiting[1].ready = True
    (grant,) = queue.grant_ready(4.0)
    assert (grant.request.number, grant.names) == (1, (A,))


def test_a_gpu_that_is_free_soon_is_foreseen_and_one_that_may_be_held_for_long_is_not():
    queue = queue_of()
    for number, (name, limit_s) in enumerate([(A, None), (B, SOON_S - 10.0), (C, SOON_S - 30.0)], 1):
        hold(queue, number, name, 10.0, limit_s=limit_s)
    importing(queue, 9)
    assert tell(queue, 11.0)[9] == (C,)
    assert tell(queue, 10.0 + SOON_S - 29.0)[9] == (B,), "the holder of C has overrun its time"
    assert tell(queue, 10.0 + SOON_S)[9] == (), "nobody knows of any"


def test_who_is_told_of_no_gpu_has_its_turn_as_who_is_ready():
    queue = queue_of()
    hold(queue, 1, A, 0.0)
    importing(queue, 2, names=(A,))
    importing(queue, 3, names=(A, B))
    queue.leases[1].names = (A, B)
    assert tell(queue, 4.0) == {2: (), 3: ()}
    queue.waiting[3].ready = True
    queue.release(1, 5.0)
    assert [(g.request.number, g.names) for g in queue.grant_ready(5.0)] == [(3, (B,))]


@pytest.mark.parametrize(("policy", "foreseen"), [("other", (B,)), ("wait", (B,)), ("warn", (A,))])
def test_a_gpu_with_a_stranger_is_foreseen_only_where_that_does_not_matter(policy, foreseen):
    looks = {A: GpuState("", (4711,)), C: GpuState("GPU-c is held by somebody without a broker")}
    queue = Queue(lambda name, mode: looks.get(name, GpuState()))
    queue.cores = 64
    importing(queue, 1, foreign=policy)
    assert tell(queue, 2.0)[1] == foreseen


def test_only_who_is_not_ready_binds_itself_and_only_to_gpus_that_it_wants():
    queue = queue_of()
    importing(queue, 1, names=(A, B))
    for names in ([C], [A, B], [], [A, A]):
        with pytest.raises(ValueError, match="not for a request to choose"):
            queue.narrow(1, names)
    queue.waiting[1].ready = True
    with pytest.raises(ValueError, match="not for a request to choose"):
        queue.narrow(1, [A])
    assert queue.waiting[1].names == (A, B)


@pytest.mark.parametrize(("cores", "each"), [(8, 1), (24, 2), (27, 3), (64, 3)])
def test_each_gpu_s_share_of_the_cores_decides_how_many_start_for_it(cores, each):
    queue = queue_of(cores)
    for number in range(1, 20):
        importing(queue, number)
    assert len([f for f in tell(queue, 20.0).values() if f]) == each * len(GPUS)


@pytest.mark.parametrize(("owners", "of_each"), [(1, 9), (2, 3), (4, 2), (9, 1), (20, 1)])
def test_owners_share_the_starts_of_all_gpus_and_each_has_one(owners, of_each):
    queue = queue_of(64)
    for number in range(1, 10 * owners):
        importing(queue, number, uid=1 + number % owners)
    found = [queue.waiting[number].uid for number, foreseen in tell(queue, 500.0).items() if foreseen]
    assert {uid: found.count(uid) for uid in found} == {1 + uid: of_each for uid in range(owners)}


@dataclasses.dataclass
class Job:
    """One job of the model: when it comes, how long it imports (never ends where `hangs`), how long it runs.

    A plain one imports nothing: it is ready when it comes.
    """

    uid: int
    user: str
    comes: float
    imports: float
    runs: float
    plain: bool
    limited: bool
    hangs: bool = False
    dies: bool = False
    number: int = 0
    sees: tuple[str, ...] = ()
    """GPUs that its sandbox shows; none before its processes have started."""
    starts: float | None = None
    able: bool = True
    granted: float | None = None
    ended: bool = False


def jobs_of(owners, **more):
    return st.builds(
        lambda owner, **rest: Job(owner[0], owner[1], **rest),
        owner=st.sampled_from(owners),
        comes=st.integers(0, 40).map(float),
        imports=st.floats(0.0, LONGEST_IMPORT_S),
        runs=st.floats(0.5, LONGEST_RUN_S),
        plain=st.booleans(),
        limited=st.booleans(),
        **more,
    )


class Host:
    """Some GPUs, their queue, and jobs by the second; supervisors do as hostd/jobs/lease.py does."""

    def __init__(self, jobs: list[Job], gpus: tuple[str, ...], cores: int) -> None:
        self.gpus, self.queue, self.now = gpus, queue_of(cores), 0.0
        self.queue.shares.policy = Policy(speakers=(0, TEAM))
        self.jobs = dict(enumerate(sorted(jobs, key=lambda job: job.comes), 1))
        for number, job in self.jobs.items():
            job.number = number

    def step(self) -> None:
        now, queue = self.now, self.queue
        for job in self.jobs.values():
            if job.comes == now:
                limit_s = LONGEST_RUN_S + LONGEST_IMPORT_S if job.limited else None
                wait(
                    queue, job.number, self.gpus, uid=job.uid, user=job.user, since=now, ready=job.plain,
                    kind="k", limit_s=limit_s,
                )  # fmt: skip
            elif job.granted is not None and not job.ended and now - job.granted >= self.holds(job):
                job.ended = True
                queue.release(job.number, now)
        for number in queue.near_turn(queue.waiting_in_order(now), now):
            self.hear(self.jobs[number], queue.waiting[number])
        for number in list(queue.waiting):
            self.go_on(self.jobs[number], queue.waiting[number])
        for grant in queue.grant_ready(now):
            job = self.jobs[grant.request.number]
            assert not job.sees or job.sees == grant.names, "the sandbox shows another GPU"
            job.granted = now
        held = [name for lease in queue.leases.values() for name in lease.names]
        assert len(held) == len(set(held)), "two have one GPU alone"
        self.now += 1.0

    def holds(self, job: Job) -> float:
        return job.runs + (0.0 if job.sees or job.plain else job.imports)

    def hear(self, job: Job, request: Request) -> None:
        """Be near the turn."""
        if job.plain or job.starts is not None or not job.able:
            return
        sees = request.foreseen or (request.names if len(request.names) == 1 else ())
        if not sees:
            job.able = False  # all is done in its turn
            return
        job.starts, job.sees = self.now, sees
        if len(request.names) > 1:
            self.queue.narrow(job.number, sees)

    def go_on(self, job: Job, request: Request) -> None:
        if not job.able:
            request.ready = True
        if job.starts is None or job.hangs or self.now - job.starts < job.imports:
            return
        if job.dies:
            job.ended = True
            self.queue.release(job.number, self.now)
        else:
            request.ready = True


HONEST = [(1, "ann"), (1, "bob"), (TEAM, "cid"), (TEAM, "dan")]
HOSTILE = [(2, "eve"), (3, ""), (TEAM, "mal")]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(jobs_of(HONEST), min_size=1, max_size=10),
    st.lists(jobs_of(HOSTILE, hangs=st.booleans(), dies=st.booleans()), max_size=10),
    st.integers(1, 3),
    st.sampled_from([8, 24, 64]),
)
def test_nobody_starves_nor_shares_a_gpu_nor_gets_another_than_its_sandbox_shows(honest, hostile, gpus, cores):
    host = Host([*honest, *hostile], GPUS[:gpus], cores)
    # The bound is that of one GPU after the other: who is bound to a GPU waits for that one alone.
    longest = (len(honest) + len(hostile)) * (LONGEST_RUN_S + LONGEST_IMPORT_S + 3.0) + 60.0
    while not all(job.ended for job in honest):
        host.step()
        assert host.now <= longest, "somebody starves"


@settings(max_examples=60, deadline=None)
@given(st.lists(jobs_of(HONEST[:1], hangs=st.booleans()), min_size=1, max_size=8), st.integers(2, 3))
def test_hanging_jobs_of_one_s_own_hold_up_the_others_no_longer_than_the_limit_of_a_start(jobs, gpus):
    host = Host(jobs, GPUS[:gpus], 64)
    hanging = sum(job.hangs for job in jobs)
    longest = len(jobs) * (LONGEST_RUN_S + LONGEST_IMPORT_S + 3.0) + hanging * (START_S + 2.0) + 60.0
    while not all(job.ended or job.hangs for job in jobs):
        host.step()
        assert host.now <= longest, "somebody starves"
