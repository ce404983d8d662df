"""Ranks on several hosts: two sshd in network namespaces of their own, and two hosts beside each other."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.hostd.gpus.gpu_locks import GpuLocks
from gpu_mcp_server.models.job import RankOptions
from gpu_mcp_server.package_files import WORKERS
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.settings.server_settings import LocalHost
from tests.backends.apart import two_apart
from tests.backends.sshd import Sshd
from tests.hostd.brokers import broker_pid
from tests.hostd.laboratory import wrapped
from tests.laboratory import Folder, laboratory

SUM = """
import os, socket, struct
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(at) as door:
        links = [door.accept()[0] for _ in range(world - 1)]
    total = sum(struct.unpack("i", link.recv(4))[0] for link in links)
    for link in links:
        link.sendall(struct.pack("i", total))
else:
    while True:
        try:
            link = socket.create_connection(at)
            break
        except ConnectionRefusedError:
            pass
    link.sendall(struct.pack("i", rank))
    total = struct.unpack("i", link.recv(4))[0]
print("sum", total, "local", os.environ["LOCAL_RANK"], "group", os.environ["GROUP_RANK"], "at", at[0], os.environ["GLOO_SOCKET_IFNAME"])
open("made-%d" % rank, "w").write(str(total))
"""
REDUCE = (
    "#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { int r, s = 0; MPI_Init(&c, &v);"
    "MPI_Comm_rank(MPI_COMM_WORLD, &r); MPI_Allreduce(&r, &s, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);"
    'printf("sum %d\\n", s); MPI_Finalize(); }'
)
MPI = shutil.which("mpirun") and Path("/usr/share/openmpi/mpicc-wrapper-data.txt").exists()


@pytest.fixture(scope="module")
async def beside() -> AsyncGenerator[Lab]:
    """Yield a laboratory of hosts on this machine, whose folders have nothing in common."""
    with Folder() as near, Folder() as other:
        open_, shut = {"kind": "local", "ranks_network": True}, {"kind": "local"}
        hosts = {"near": {**open_, "state_dir": str(near)}, "other": {**open_, "state_dir": str(other)}}
        async with laboratory(hosts={**hosts, "shut": {**shut, "state_dir": str(near)}}) as lab:
            yield lab


@pytest.fixture
def apart() -> Generator[list[Sshd]]:
    """Yield two sshd, each in a network of its own that a bridge connects."""
    with two_apart("gmt", "10.213.7") as found:
        yield found


async def test_ranks_on_two_hosts_find_each_other(apart: list[Sshd]):
    hosts = {
        name: sshd.settings(ranks_network=True, state_dir=str(sshd.folder / "state"))
        for name, sshd in zip(("one", "two"), apart, strict=True)
    }
    async with laboratory(hosts=hosts) as lab:
        where = (await lab.store.workspaces.write(None, {"sum.py": SUM})).workspace_id
        ranks = RankOptions(count=4, hosts=["two", "one"])
        done = await lab.commands.run(["python3", "sum.py"], workspace_id=where, ranks=ranks, timeout_s=60)
        assert done.status == "ok", done
        said = [(r.host, r.last) for r in done.ranks]
        assert said == [
            ("two", f"sum 6 local 0 group 0 at {apart[1].address} gmt-in1"),
            ("two", f"sum 6 local 1 group 0 at {apart[1].address} gmt-in1"),
            ("one", f"sum 6 local 0 group 1 at {apart[1].address} gmt-in0"),
            ("one", f"sum 6 local 1 group 1 at {apart[1].address} gmt-in0"),
        ]
        files = [f.path for f in (await lab.store.workspaces.listing(where)).files]
        if MPI:
            await mpi_talks(lab)
        assert files == ["made-0", "made-1", "one/made-2", "one/made-3", "sum.py"]


async def mpi_talks(lab: Lab) -> None:
    """mpirun starts its daemons by our line, and the ranks really talk over the network between the two."""
    where = (await lab.store.workspaces.write(None, {"a.c": REDUCE})).workspace_id
    assert (await lab.commands.run(["mpicc", "-o", "a", "a.c"], workspace_id=where)).status == "ok"
    ranks = RankOptions(count=4, hosts=["one", "two"], launcher="mpirun")
    done = await lab.commands.run(["./a"], workspace_id=where, ranks=ranks, timeout_s=60)
    assert done.status == "ok", done
    assert [(r.host, r.last) for r in done.ranks] == [(h, "sum 6") for h in ("one", "one", "two", "two")]


async def test_a_rank_that_fails_elsewhere_ends_all_and_is_named(beside: Lab):
    script = 'echo "starting $RANK"; if [ $RANK = 2 ]; then echo "no such file: weights.bin" >&2; exit 7; fi; sleep 60'
    ranks = RankOptions(count=4, hosts=["near", "other"])
    done = await beside.commands.run(["sh", "-c", script], ranks=ranks, timeout_s=40)
    assert (done.status, done.exit_code) == ("failed", 7), done
    assert "rank 2 on other: exit 7, last said 'no such file: weights.bin'" in (done.note or ""), done.note
    assert (done.ranks[0].host, done.ranks[0].state) == ("near", "did not end")
    assert not [j for j in await beside.commands.recent() if j.state != "finished"]


async def test_when_a_host_is_lost_the_others_end(beside: Lab):
    begun = asyncio.Event()

    async def heard(name: str, fresh: bytes) -> None:
        if b"begun" in fresh:
            begun.set()

    ranks = RankOptions(count=2, hosts=["near", "other"])
    running = asyncio.create_task(
        beside.commands.run(["sh", "-c", "echo begun; sleep 600"], ranks=ranks, timeout_s=500, on_output=heard)
    )
    await begun.wait()
    (other,) = [j for j in await beside.commands.recent() if j.host == "other" and j.state != "finished"]
    await beside.commands.cancel(other.job_id)
    done = await running
    assert done.status == "failed" and "ranks: host other was lost" in done.stderr, done
    assert done.ranks[1].host == "other" and done.ranks[1].state != "ended"


async def test_what_cannot_be_is_refused_in_words(beside: Lab):
    for ranks, words in (
        (RankOptions(count=2, hosts=["near", "shut"]), "'shut' does not let them"),
        (RankOptions(count=3, hosts=["near", "other"]), "as many ranks for each"),
        (RankOptions(count=2, hosts=["near", "near"]), "each host once"),
    ):
        with pytest.raises(BadRequest, match=words):
            await beside.commands.run(["true"], ranks=ranks)


async def test_two_runs_that_want_the_same_gpus_in_opposite_order_both_end():
    with Folder() as folder:
        hosts: dict[str, LocalHost] = {}
        for name in ("alpha", "beta"):
            (folder / f"{name}.json").write_text(json.dumps([{"uuid": f"GPU-{name}"}]))
            env = {"GPU_MCP_HOSTD_GPUS": f"{folder}/{name}.json", "GPU_MCP_HOSTD_LOCKS": f"{folder}/{name}-locks"}
            state = folder / name
            hosts[name] = LocalHost(python=str(wrapped(state, env)), state_dir=str(state), ranks_network=True)
        async with laboratory(hosts=hosts) as lab:
            orders = (["alpha", "beta"], ["beta", "alpha"])
            both = await asyncio.gather(
                *(
                    lab.commands.run(["true"], gpus=1, ranks=RankOptions(count=2, hosts=order), timeout_s=90)
                    for order in orders
                )
            )
            assert [d.status for d in both] == ["ok", "ok"], both
            assert [[r.host for r in d.ranks] for d in both] == list(orders)
        for name in hosts:
            if (pid := broker_pid(GpuLocks(f"{folder}/{name}-locks"))) is not None:
                os.kill(pid, signal.SIGKILL)


def test_who_does_not_know_the_token_is_not_let_in(tmp_path: Path):
    program = tmp_path / "ranks.py"
    program.write_text("import json, sys\nprint(json.loads(sys.argv[2])['say'])\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {
        "groups": 2, "hosts": ["a", "b"], "token": "right", "ports": [port], "addresses": ["127.0.0.1"],
        "patience_s": 30, "limit_s": 30, "program": str(program),
    }  # fmt: skip

    def group(number: int, **more: object) -> "subprocess.Popen[str]":
        plan = {**shared, "group": number, "ranks": {"say": f"group {number}", "launcher": "torchrun"}, **more}
        command = [sys.executable, str(WORKERS / "multi_host_ranks.py"), json.dumps(plan)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    head = group(0)
    wrong = group(1, token="wrong", patience_s=1)
    said = wrong.communicate(timeout=30)
    assert wrong.returncode == 75 and "was not found within 1 s at 127.0.0.1" in said[1], said
    for rubbish in (b"", b"\xff" * 9000, b"[]\n", b'{"group": 1, "mac": "x"}\n', b'{"group": [1]}\n'):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(rubbish)
    right = group(1)
    assert right.communicate(timeout=30)[0] == "group 1\n" and right.returncode == 0
    assert head.communicate(timeout=30)[0] == "group 0\n" and head.returncode == 0
