"""Ranks, test reports and broken kernels of run_command, over the real host: sandboxes, Open MPI, pytest, ctest."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.errors import ToolMissing
from gpu_mcp_server.hostd.protocol import JobRecord, ProcessRecord
from gpu_mcp_server.models.job import RankOptions
from gpu_mcp_server.models.toolchains import Tool
from gpu_mcp_server.services.commands import run_traces
from gpu_mcp_server.services.jobs.job_runner import FinishedJob
from gpu_mcp_server.services.jobs.job_table import JobRow
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import junit
from tests.laboratory import laboratory

SAY = 'echo "I am $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT local $LOCAL_RANK"; echo "err $RANK" >&2'
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="apt-get install openmpi-bin")


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=needs_mpirun)])
async def test_every_rank_knows_itself_and_is_heard_apart(lab: Lab, launcher):
    done = await lab.commands.run(["sh", "-c", SAY], ranks=RankOptions(count=3, launcher=launcher), timeout_s=60)
    assert done.status == "ok", done
    assert [r.rank for r in done.ranks] == [0, 1, 2] and all(r.exit_code == 0 for r in done.ranks)
    for n, rank in enumerate(done.ranks):
        assert f"I am {n} of 3 at 127.0.0.1:" in rank.last and f"local {n}" in rank.last and f"err {n}" in rank.last
    assert done.stdout.startswith("I am 0 of 3") and "I am 1" not in done.stdout
    assert len({rank.last.split(" local")[0].rpartition(":")[2] for rank in done.ranks}) == 1, "one port for all"
    whole = {o.path: o.artifact_id for o in done.outputs}
    assert set(whole) == {f".gpu-mcp/ranks/{n}.{kind}" for n in range(3) for kind in ("out", "err")}
    assert await lab.store.artifacts.read(whole[".gpu-mcp/ranks/2.err"] or "") == b"err 2\n"


async def test_a_hosts_environment_is_every_jobs_and_the_jobs_own_comes_first():
    environment = {"NCCL_NVLS_ENABLE": "0", "COLOUR": "blue"}
    async with laboratory(hosts={"local": {"kind": "local", "environment": environment}}) as lab:
        done = await lab.commands.run(
            ["sh", "-c", "echo $NCCL_NVLS_ENABLE $COLOUR"], env={"COLOUR": "red"}, timeout_s=60
        )

    assert done.stdout == "0 red\n", done


@needs_mpirun
async def test_ranks_of_mpirun_really_talk_mpi(lab: Lab):
    if not Path("/usr/share/openmpi/mpicc-wrapper-data.txt").exists():
        pytest.skip("apt-get install libopenmpi-dev")
    source = (
        "#include <mpi.h>\n#include <stdio.h>\nint main(int c, char **v) { int r, s = 0; MPI_Init(&c, &v);"
        'MPI_Comm_rank(MPI_COMM_WORLD, &r); MPI_Allreduce(&r, &s, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); printf("sum %d\\n", s); MPI_Finalize(); }'
    )
    where = (await lab.store.workspaces.write(None, {"a.c": source})).workspace_id
    assert (await lab.commands.run(["mpicc", "-o", "a", "a.c"], workspace_id=where)).status == "ok"
    done = await lab.commands.run(["./a"], workspace_id=where, ranks=RankOptions(count=4, launcher="mpirun"))
    assert done.status == "ok" and [r.last for r in done.ranks] == ["sum 6"] * 4, done


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=needs_mpirun)])
async def test_a_rank_that_fails_is_named_with_what_it_last_said(lab: Lab, launcher):
    script = 'echo "starting $RANK"; if [ $RANK = 1 ]; then echo "no such file: weights.bin" >&2; exit 7; fi; sleep 60'
    done = await lab.commands.run(["sh", "-c", script], ranks=RankOptions(count=2, launcher=launcher), timeout_s=40)
    assert done.status == "failed", done
    assert "rank 1: exit 7, last said 'no such file: weights.bin'" in (done.note or ""), done.note


async def test_a_rank_that_never_ends_is_named_when_the_time_is_over(lab: Lab):
    script = 'echo "step $RANK"; [ $RANK = 0 ] || sleep 600'
    done = await lab.commands.run(["sh", "-c", script], ranks=RankOptions(count=2), timeout_s=2)
    assert done.status != "ok"
    assert "1 of 2 ranks failed: rank 1: did not end, last said 'step 1'" in (done.note or ""), done


async def test_the_traces_of_ranks_do_not_stay_in_the_workspace(lab: Lab):
    where = (await lab.store.workspaces.write(None, {"a": "x"})).workspace_id
    done = await lab.commands.run(
        ["sh", "-c", "echo $RANK > made-$RANK"], workspace_id=where, ranks=RankOptions(count=2)
    )
    assert done.status == "ok" and len(done.ranks) == 2
    assert [f.path for f in (await lab.store.workspaces.listing(where)).files] == ["a", "made-0", "made-1"]


async def test_mpirun_that_is_not_there_is_missing(lab: Lab):
    probe = await lab.hosts.probe("local")
    bare = probe.model_copy(update={"toolchains": probe.toolchains.model_copy(update={"tools": {}})})
    with pytest.raises(ToolMissing, match="mpirun"):
        run_traces.instrument_command(
            ["a"], bare, "local", gpus=0, ranks=RankOptions(count=2, launcher="mpirun"), timeout_s=1
        )


async def test_mpirun_outside_of_usr_is_shown_to_its_job(lab: Lab):
    probe = await lab.hosts.probe("local")
    mpirun = {"mpirun": Tool(path="/opt/openmpi/bin/mpirun", version="5.0", roots=["/opt/openmpi"])}
    there = probe.model_copy(update={"toolchains": probe.toolchains.model_copy(update={"tools": mpirun})})
    for launcher, roots in (("mpirun", ("/opt/openmpi",)), ("torchrun", ())):
        ranks = RankOptions.model_validate({"count": 2, "launcher": launcher})
        assert run_traces.instrument_command(["a"], there, "local", gpus=0, ranks=ranks, timeout_s=1).roots == roots


TESTS = """
import pytest
def test_right(): assert True
def test_wrong():
    got = 4
    assert got == 5, "the answer is off"
@pytest.mark.skip(reason="not today")
def test_later(): pass
"""


async def test_failed_tests_of_pytest_come_with_their_message(lab: Lab):
    judge = (await lab.hosts.probe("local")).judge
    where = (await lab.store.workspaces.write(None, {"test_it.py": TESTS})).workspace_id
    assert judge is not None
    done = await lab.commands.run([judge.path, "-m", "pytest", "-q", "-p", "no:cacheprovider"], workspace_id=where)
    if "No module named pytest" in done.stderr:
        pytest.skip("the judge's Python has no pytest")
    assert done.tests is not None, done
    assert (done.tests.total, done.tests.failed, done.tests.skipped) == (3, 1, 1)
    assert (
        done.tests.failures[0].name == "test_it::test_wrong" and "the answer is off" in done.tests.failures[0].message
    )
    assert "FAILED test_it::test_wrong" in done.summary()
    assert not any(f.path.endswith(junit.REPORT) for f in (await lab.store.workspaces.listing(where)).files)


@pytest.mark.skipif(shutil.which("ctest") is None, reason="cmake is not installed")
async def test_failed_tests_of_ctest_come_with_their_output(lab: Lab):
    listed = 'add_test(good "/bin/true")\nadd_test(bad "/bin/sh" "-c" "echo sum is 7; exit 1")\n'
    where = (await lab.store.workspaces.write(None, {"CTestTestfile.cmake": listed})).workspace_id
    done = await lab.commands.run(["ctest"], workspace_id=where)
    assert done.tests is not None, done
    assert (done.tests.total, done.tests.failed) == (2, 1)
    assert [(f.name, f.message) for f in done.tests.failures] == [("bad::bad", "sum is 7")]


def test_a_report_is_asked_for_only_where_it_is_known_how():
    assert junit.with_report_option(["pytest", "-q"])[-1] == f"--junitxml={junit.REPORT}"
    assert junit.with_report_option(["pytest", "--junitxml=mine.xml"]) == ["pytest", "--junitxml=mine.xml"]
    assert junit.with_report_option(["./t", "--gtest_filter=A.*"])[-1] == f"--gtest_output=xml:{junit.REPORT}"
    assert junit.with_report_option(["make", "test"]) == ["make", "test"]


def test_googletests_report_is_read():
    report = junit.parse(
        b'<?xml version="1.0"?><testsuites tests="2"><testsuite name="Sum"><testcase name="small" classname="Sum" time="0.01"/>'
        b'<testcase name="large" classname="Sum"><failure message="sum.cc:12&#x0A;Expected: 3" type=""><![CDATA[sum.cc:12]]></failure></testcase>'
        b"</testsuite></testsuites>"
    )
    assert report is not None and [(f.name, f.message) for f in report.failures] == [
        ("Sum::large", "sum.cc:12\nExpected: 3")
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.text(max_size=60).map(
            lambda t: f"<testsuite><testcase time='{t}'><failure>{t}</failure></testcase></testsuite>".encode()
        ),
    )
)
def test_no_report_makes_it_raise(data: bytes):
    junit.parse(data)
    assert junit.parse(b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite/>') is None


async def test_a_broken_kernel_without_a_core_dump_leads_to_the_checker(lab: Lab):
    record = JobRecord("j-1", "finished", "run", "failed", processes=(ProcessRecord("main", 1),), gpus=("GPU-0",))
    said = b"CUDA error: an illegal memory access was encountered\n"
    row = JobRow("j-1", "local", "run", None, None, "", {}, record)
    traces = await run_traces.RunTraceReader(lab.jobs.runner, lab.store.workspaces).read_traces(
        FinishedJob("local", record, b"", said), row
    )
    assert traces.notes == [
        "a kernel broke (illegal memory access): check_memory with this command names kernel and line"
    ]
