"""run_tests on real test programs: pytest, ctest, googletest, and those that are started by something else."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.job import JobResult, TestFailure, TestReport
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.toolchains import junit
from tests.laboratory import client_of

needs_gtest = pytest.mark.skipif(not Path("/usr/include/gtest/gtest.h").exists(), reason="apt-get install libgtest-dev")
PYTEST = """
import ctypes, pytest
def test_right(): assert True
def test_wrong(): assert 4 == 5, "the answer is off"
@pytest.mark.skip(reason="not today")
def test_later(): pass
"""
GTEST = """#include <gtest/gtest.h>
#include <cstdlib>
TEST(Sum, Small) { EXPECT_EQ(1 + 1, 2); }
TEST(Sum, Large) { EXPECT_EQ(1 + 1, 3) << "off by one"; }
TEST(Sum, Late) { if (std::getenv("CRASH")) std::abort(); GTEST_SKIP(); }
"""
OTHER = '<testsuite><testcase name="%s"/><testcase name="bad" classname="mine"><failure>gone</failure></testcase></testsuite>'


async def outcome(lab: Lab, files: dict[str, str], *command: str, report: tuple[str, ...] = (), **more: object):
    where = (await lab.store.workspaces.write(None, files)).workspace_id
    return await lab.commands.run(command, workspace_id=where, tests=report, **more)  # type: ignore[arg-type]


def counts(done: JobResult) -> tuple[int, int, int]:
    assert done.tests is not None, done.summary()
    return done.tests.total, done.tests.failed, done.tests.skipped


async def python_with_pytest(lab: Lab) -> str:
    judge = (await lab.hosts.probe("local")).judge
    assert judge is not None
    if (await lab.commands.run([judge.path, "-m", "pytest", "--version"])).status != "ok":
        pytest.skip("the judge's Python has no pytest")
    return judge.path


async def test_pytest_below_a_script_reports_as_if_it_were_called_itself(lab: Lab):
    python = await python_with_pytest(lab)
    files = {"sub/test_it.py": PYTEST, "check.sh": f"cd sub && {python} -m pytest -q -p no:cacheprovider"}
    done = await outcome(lab, files, "sh", "check.sh", env={"PYTEST_ADDOPTS": "-W ignore"})
    assert (done.status, counts(done)) == ("failed", (3, 1, 1)), done.summary()
    assert done.tests and done.tests.failures[0].name == "test_it::test_wrong"
    assert "the answer is off" in done.tests.failures[0].message and "FAILED test_it::test_wrong" in done.summary()
    kept = (await lab.store.workspaces.listing(done.workspace_id or "")).files
    assert not any(junit.is_own_report(f.path) for f in kept), "a report that only we wanted stays in the workspace"


async def test_a_test_that_breaks_the_interpreter_is_named(lab: Lab):
    python = await python_with_pytest(lab)
    crash = PYTEST + "def test_wild(): ctypes.string_at(0)\n"
    done = await outcome(lab, {"test_it.py": crash}, python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.tests is None and done.status == "failed", done.summary()
    assert "the last test that began is test_wild" in (done.note or ""), done.summary()


@needs_gtest
async def test_googletest_programs_are_asked_by_their_environment_and_a_crash_names_the_test(lab: Lab):
    where = (await lab.store.workspaces.write(None, {"t.cc": GTEST})).workspace_id
    built = await lab.commands.run(
        ["g++", "-O0", "-o", "t", "t.cc", "-lgtest", "-lgtest_main"], workspace_id=where, timeout_s=100
    )
    assert built.status == "ok", built.summary()
    twice = await lab.commands.run(["sh", "-c", "./t; ./t"], workspace_id=where, tests=())
    assert counts(twice) == (6, 2, 2), twice.summary()
    assert twice.tests and twice.tests.failures[0].name == "Sum::Large"
    assert "off by one" in twice.tests.failures[0].message
    crashed = await lab.commands.run(["./t"], workspace_id=where, tests=(), env={"CRASH": "1"})
    assert crashed.tests is None and "the last test that began is Sum.Late" in (crashed.note or ""), crashed.summary()


@pytest.mark.skipif(shutil.which("ctest") is None, reason="cmake is not installed")
async def test_what_build_project_built_is_tested_again_by_ctest(lab: Lab):
    lists = 'cmake_minimum_required(VERSION 3.20)\nproject(t NONE)\nenable_testing()\nadd_test(NAME bad COMMAND sh -c "echo sum is 7; exit 1")\n'
    where = (await lab.store.workspaces.write(None, {"CMakeLists.txt": lists})).workspace_id
    built = await lab.builds.projects.build(where, tests=True)
    assert built.tests and built.tests.failed == 1 and "FAILED bad::bad" in built.summary(), built.summary()
    done = await lab.commands.run(["ctest", "--test-dir", "build"], workspace_id=where, tests=())
    assert counts(done) == (1, 1, 0) and done.tests and done.tests.failures[0].message == "sum is 7", done.summary()


async def test_a_report_of_ones_own_is_named_and_an_old_one_does_not_count(lab: Lab):
    files = {"out/a.xml": OTHER % "old", "new.xml": OTHER % "new", "note.txt": "x"}
    with pytest.raises(BadRequest, match=r"note\.txt"):
        await outcome(lab, files, "true", report=("note.txt",))
    stale = await outcome(lab, files, "true", report=("out/*.xml",))
    assert stale.tests is None and "out/a.xml is as it was before" in (stale.note or "")
    none = await outcome(lab, files, "true", report=("later/*.xml",))
    assert none.tests is None and "no JUnit report was written" in (none.note or "")
    fresh = await outcome(lab, files, "cp", "new.xml", "out/b.xml", report=("out/*.xml",))
    assert counts(fresh) == (2, 1, 0) and fresh.tests and fresh.tests.failures[0].message == "gone"
    assert "exited with 0 all the same" in (fresh.note or "")
    assert "out/b.xml" in [f.path for f in (await lab.store.workspaces.listing(fresh.workspace_id or "")).files]


async def test_the_tool_answers_with_failed_tests_and_its_job_can_be_asked_again(lab: Lab):
    async with client_of(lab.settings.data_dir) as client:
        files = {
            "r.sh": "printf '%s' '<testsuite><testcase name=\"a\"><failure message=\"why\"/></testcase></testsuite>' > r.xml"
        }
        where = (await client.call_tool("write_files", {"files": files})).structured_content
        assert where
        arguments = {"command": ["sh", "r.sh"], "workspace_id": where["workspace_id"], "report": ["r.xml"]}
        result = await client.call_tool("run_tests", arguments)
        assert result.structured_content and result.structured_content["tests"]["failures"][0]["message"] == "why"
        again = await client.call_tool("job_status", {"job_id": result.structured_content["job_id"]})
        assert again.structured_content and again.structured_content["tests"] == result.structured_content["tests"]


def test_doubts_are_said_and_only_those():
    good, bad = (
        TestReport(total=2, failed=0),
        TestReport(total=2, failed=1, failures=[TestFailure(name="a", message="")]),
    )
    assert junit.inconsistencies(good, 0, "") is None and junit.inconsistencies(bad, 1, "") is None
    assert "exited with 3" in (junit.inconsistencies(good, 3, "") or "")
    assert "holds no test" in (junit.inconsistencies(TestReport(total=0, failed=0), 5, "") or "")
    nowhere = junit.inconsistencies(TestReport(total=0, failed=0), 0, "Test project /job\nNo tests were found!!!\n")
    assert "--test-dir" in (nowhere or "")
    assert "did not come to its end; the last test that began is A.b" in (
        junit.inconsistencies(good, None, "[ RUN      ] A.b\n") or ""
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 15), max_size=4))
def test_reports_add_up_and_no_failure_is_lost_without_a_word(sizes: list[int]):
    reports = [
        TestReport(total=n, failed=n, failures=[TestFailure(name="t", message="")] * min(n, junit.SHOWN), failures_left_out=max(0, n - junit.SHOWN) or None)
        for n in sizes
    ]  # fmt: skip
    whole = junit.merge_reports(reports)
    assert (whole is None) == (not sizes)
    if whole is not None:
        assert whole.failed == whole.total == sum(sizes)
        assert len(whole.failures) + (whole.failures_left_out or 0) == whole.failed


@pytest.mark.parametrize(
    ("argv", "python", "expected"),
    [
        (["python3", "-m", "pytest", "-q"], "/opt/judge/bin/python", ["/opt/judge/bin/python", "-m", "pytest", "-q"]),
        (["python", "-m", "pytest"], "/opt/judge/bin/python", ["/opt/judge/bin/python", "-m", "pytest"]),
        (["python3", "-m", "pytest"], "/usr/bin/python3", ["python3", "-m", "pytest"]),
        (["python3", "-m", "pytest"], None, ["python3", "-m", "pytest"]),
        (["/usr/bin/python3", "-m", "pytest"], "/opt/judge/bin/python", ["/usr/bin/python3", "-m", "pytest"]),
        (["python3", "run.py"], "/opt/judge/bin/python", ["python3", "run.py"]),
    ],
)
def test_pytest_is_that_of_the_judge_s_python(argv: list[str], python: str | None, expected: list[str]):
    assert junit.with_judge_python(argv, python) == expected


async def test_python3_finds_pytest_in_the_judge_s_python(lab: Lab):
    python = await python_with_pytest(lab)
    if python.startswith("/usr/bin"):
        pytest.skip("the judge's Python is the system's")
    done = await outcome(lab, {"test_it.py": PYTEST}, "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert counts(done) == (3, 1, 1), done.summary()


async def test_without_pytest_the_note_says_how(lab: Lab):
    files = {"run.sh": 'echo "/usr/bin/python3: No module named pytest" >&2; exit 1'}
    done = await outcome(lab, files, "sh", "run.sh")
    assert "pytest is not there: " in (done.note or "") and "python3 -m unittest" in (done.note or ""), done.note


@pytest.mark.parametrize(
    ("name", "said"),
    [("sh -c ls", 'without a shell: ["sh", "-c", "sh -c ls"]'), ("nope", "./nope"), ("./nope", "list_files")],
)
async def test_a_program_that_is_not_there_is_told_what_to_do(lab: Lab, name: str, said: str):
    done = await lab.commands.run([name])
    assert done.exit_code == 127 and said in (done.note or ""), done.note
