"""The laboratory on a machine that SSH reaches gives what it gives on this one."""

import asyncio
import contextlib
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import pytest

from gpu_mcp_server.backends.contract.host import job, sha256
from gpu_mcp_server.hostd.protocol import JobSpec, ProcessSpec
from gpu_mcp_server.models.problem import ProblemInfo, TensorSpec
from gpu_mcp_server.services.builds.candidate_source import CandidateSource
from gpu_mcp_server.services.jobs.job_table import new_job_id
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import LocalHost, Settings
from tests.backends.sshd import Sshd

SOFTMAX = Path(__file__).parents[2] / "examples" / "softmax"
HOSTS = ("local", "box")


@pytest.fixture
async def lab(sshd: Sshd, state_dir: str, tmp_path: Path) -> AsyncIterator[Lab]:
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    box = sshd.settings(state_dir=f"{state_dir}/box", judge_python=sys.executable)
    local = LocalHost(state_dir=f"{state_dir}/local", judge_python=sys.executable)
    async with Lab.open(Settings(data_dir=tmp_path, hosts={"local": local, "box": box})) as opened:
        status = await opened.status.gpus.status("box")
        if status.hosts[0].level not in ("full", "namespaces"):
            pytest.skip(f"jobs cannot run here: {status.hosts[0].weaker_because}")
        yield opened


def source(name: str) -> CandidateSource:
    return CandidateSource((SOFTMAX / name).read_text(), "c", name)


async def softmax(lab: Lab, host: str) -> ProblemInfo:
    tensors = [TensorSpec(name=n, dtype="float32", shape=["rows", "cols"]) for n in "xy"]
    return await lab.evaluation.registry.register(
        name="softmax", reference=(SOFTMAX / "reference.py").read_text(), entry="softmax", inputs=tensors[:1],
        outputs=tensors[1:], shapes=[{"rows": 8, "cols": 1000}, {"rows": 3, "cols": 1025}], rtol=1e-4, atol=1e-6, host=host,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "verdict"), [("naive.c", "correct"), ("wrong_tail.c", "incorrect")])
async def test_a_kernel_gets_the_verdict_over_ssh_that_it_gets_here(lab: Lab, name: str, verdict: str):
    problem = await softmax(lab, "box")

    here, there = [
        await lab.evaluation.evaluator.evaluate(problem.problem_id, source(name), host=host) for host in HOSTS
    ]

    assert (here.host, there.host) == HOSTS
    assert here.verdict == there.verdict == verdict
    assert [(s.verdict, s.dims) for s in here.shapes] == [(s.verdict, s.dims) for s in there.shapes]
    attempts = await lab.store.experience.list("recent", problem_id=problem.problem_id)
    assert {a.host for a in attempts.attempts} >= set(HOSTS)


async def test_files_go_to_a_program_and_come_back(lab: Lab):
    code = '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a * b); }\n'
    written = await lab.store.workspaces.write(
        None, {"src/product.c": code, "build.sh": "gcc -o product src/product.c\n"}
    )
    where = {"workspace_id": written.workspace_id, "host": "box"}

    built = await lab.commands.run(["sh", "build.sh"], **where)
    ran = await lab.commands.run(["sh", "-c", "./product >answer.txt; cat answer.txt"], stdin="6 7\n", **where)

    assert (built.status, built.stderr) == ("ok", "")
    assert (ran.host, ran.status, ran.stdout) == ("box", "ok", "42\n")
    assert (await lab.store.workspaces.read(written.workspace_id, "answer.txt")).text == "42"
    listing = await lab.store.workspaces.listing(written.workspace_id)
    assert sorted(f.path for f in listing.files) == ["answer.txt", "build.sh", "product", "src/product.c"]


async def test_compilers_messages_come_back(lab: Lab):
    good = await lab.builds.compiler.compile(source("naive.c"), host="box")
    bad = await lab.builds.compiler.compile(
        CandidateSource("int launch(void) { return missing; }\n", "c", "bad.c"), host="box"
    )

    assert (good.status, good.host, good.binary_bytes is not None) == ("ok", "box", True)
    assert bad.status == "failed"
    assert "missing" in bad.diagnostics[0].message


async def test_a_detached_job_is_found_by_the_next_server(lab: Lab):
    started = await lab.commands.run(["sh", "-c", "sleep 1; echo done"], host="box", detach=True)
    await lab.hosts.close()

    finished = await lab.commands.status(started.job_id, wait_s=60)

    assert (finished.state, finished.status, finished.stdout) == ("finished", "ok", "done\n")


async def test_a_run_goes_on_when_its_line_is_lost_meanwhile(
    start_sshd: Callable[..., Sshd], state_dir: str, tmp_path: Path
):
    server = start_sshd()
    box = server.settings(state_dir=state_dir, grace_s=30)
    async with Lab.open(Settings(data_dir=tmp_path, hosts={"box": box}, default_host="box")) as lab:
        heard = asyncio.Event()

        async def progress(said: str) -> None:
            if "started" in said:
                heard.set()

        script = "echo started; sleep 3; echo finished"
        running = asyncio.create_task(lab.commands.run(["sh", "-c", script], progress=progress))
        await asyncio.wait_for(heard.wait(), 60)
        server.cut()
        done = await running

    assert (done.status, done.stdout) == ("ok", "started\nfinished\n")


class Turns:
    """A line on loopback that counts how often its client speaks after it was spoken to, and what it sends."""

    def __init__(self, port: int) -> None:
        self._to, self.count, self._answered = port, 0, False
        self.sent_bytes = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pump(reader, back, True), self._pump(there, writer, False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.count += client and self._answered
                self.sent_bytes += len(data) if client else 0
                self._answered = not client
                writer.write(data)
            writer.close()


async def test_a_job_at_a_distance_costs_one_round_trip(sshd: Sshd, state_dir: str, tmp_path: Path):
    known = tmp_path / "known"
    async with Turns(sshd.port) as line:
        known.write_text(sshd.known_line().replace(f":{sshd.port} ", f":{line.port} "))
        box = sshd.settings(state_dir=state_dir, port=line.port, known_hosts=known)
        async with Lab.open(Settings(data_dir=tmp_path, hosts={"box": box})) as lab:
            process = ProcessSpec(argv=("sh", "-c", "echo made > small; head -c 300000 /dev/zero > large"))
            spec = JobSpec(new_job_id(), (process,), outputs=("small", "large"), min_level="landlock")
            assert (await lab.jobs.runner.run(spec, host="box")).record.status == "ok"
            before = line.count
            done = await lab.jobs.runner.run(spec._replace(id=new_job_id()), host="box")
            assert (done.record.status, line.count - before) == ("ok", 1)
            outputs = {o.path: o.sha256 for o in done.record.outputs}
            assert await lab.jobs.runner.fetch("box", outputs["small"]) == b"made\n"
            assert line.count - before == 1, "small outputs come along with the end"
            assert await lab.jobs.runner.fetch("box", outputs["large"]) == bytes(300_000)
            assert line.count - before == 2


async def test_a_thousand_files_that_the_host_knows_cost_one_round_trip(sshd: Sshd, state_dir: str, tmp_path: Path):
    known = tmp_path / "known"
    files = {f"d{n % 10}/f{n}": f"{n}".encode() * 500 for n in range(1000)}
    blobs = {sha256(data): data for data in files.values()}
    async with Turns(sshd.port) as line:
        known.write_text(sshd.known_line().replace(f":{sshd.port} ", f":{line.port} "))
        box = sshd.settings(state_dir=state_dir, port=line.port, known_hosts=known)
        async with Lab.open(Settings(data_dir=tmp_path, hosts={"box": box})) as lab:
            turns: list[int] = []
            for changed in ({}, {}, {"d1/f1": b"changed"}):
                files |= changed
                blobs |= {sha256(data): data for data in changed.values()}
                spec = job("sh", "-c", "cat d*/f* | wc -c", files=files, min_level="landlock")
                before = line.count
                done = await lab.jobs.runner.run(spec, host="box", blobs=blobs)
                turns.append(line.count - before)
                assert done.stdout.strip() == str(sum(map(len, files.values()))).encode()
    assert turns[1:] == [1, 1], turns


async def test_a_server_that_comes_back_sends_nothing_that_the_host_has(sshd: Sshd, state_dir: str, tmp_path: Path):
    known = tmp_path / "known"
    data = random.Random(1).randbytes(3_000_000)
    async with Turns(sshd.port) as line:
        known.write_text(sshd.known_line().replace(f":{sshd.port} ", f":{line.port} "))
        box = sshd.settings(state_dir=state_dir, port=line.port, known_hosts=known)
        sent: list[int] = []
        for name in ("first", "second"):
            async with Lab.open(Settings(data_dir=tmp_path / name, hosts={"box": box})) as lab:
                before = line.sent_bytes
                spec = job("sh", "-c", "wc -c < large", files={"large": data}, min_level="landlock")
                done = await lab.jobs.runner.run(spec, host="box", blobs={sha256(data): data})
                assert (done.record.status, done.stdout.strip()) == ("ok", b"3000000")
                sent.append(line.sent_bytes - before)
    assert sent[0] > 3_000_000
    assert sent[1] < 500_000, "the connection, perhaps hostd, and the request"
