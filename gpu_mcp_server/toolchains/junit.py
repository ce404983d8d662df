"""Reports of tests in JUnit's XML, as pytest, ctest (3.21 and later) and googletest write them.

Source: reports of pytest 9, ctest 3.25 and the schema of googletest's XML output; pytest's documentation of
PYTEST_ADDOPTS, googletest's of GTEST_OUTPUT ("a folder with a slash at its end gets a file for each program").
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models.job import TestFailure, TestReport

REPORT = ".gpu-mcp-tests.xml"
FOLDER = ".gpu-mcp-tests"
"""Where programs write that are told by their environment, below whatever folder they start in."""
SHOWN = 10
MESSAGE = 600
MAX_BYTES = 16 << 20
MAX_REPORTS = 100
MAX_PATTERNS = 8
_LAST = (
    re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE),
    re.compile(r'^  File "[^"\n]+", line \d+ in (test\w*)', re.MULTILINE),
)
"""What was last begun, by googletest, and by pytest's faulthandler when the interpreter breaks."""
_NO_PYTEST = re.compile(
    r"No module named '?pytest'?|cannot start \S*py\.?test: No such file|py\.?test: (?:command )?not found"
)


def with_report_option(argv: Sequence[str]) -> list[str]:
    """Return a command that also writes a report, where its program is known to be able to."""
    command = list(argv)
    name = command[0].rpartition("/")[2]
    module = command[1:3] == ["-m", "pytest"]
    if (name in ("pytest", "py.test") or module) and not any(a.startswith("--junit") for a in command):
        return [*command, f"--junitxml={REPORT}"]
    if name == "ctest" and "--output-junit" not in command:
        return [*command, "--output-junit", REPORT]
    if any(a.startswith("--gtest_") for a in command) and not any(a.startswith("--gtest_output") for a in command):
        return [*command, f"--gtest_output=xml:{REPORT}"]
    return command


def with_judge_python(argv: Sequence[str], python: str | None) -> list[str]:
    """Return a command in which `python -m pytest` is that of the judge, who has what tests of kernels import.

    A Python of the system stays what PATH finds, and so does one that is named by its path.
    """
    ours = python is not None and not python.startswith(("/usr/bin/", "/bin/"))
    if ours and argv[0] in ("python", "python3") and list(argv[1:3]) == ["-m", "pytest"]:
        return [str(python), *argv[1:]]
    return list(argv)


def missing_pytest(said: str, python: str | None) -> str | None:
    """Say how to have pytest, where a program wanted it and it was not there."""
    if not _NO_PYTEST.search(said):
        return None
    install = (
        f"a person can install it into the judge's Python: {python} -m pip install pytest"
        if python
        else ("a person can set judge_python of this host to a Python that has it")
    )
    return f"pytest is not there: {install}; or run unittest, which needs nothing: python3 -m unittest"


def environment(argv: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which pytest and googletest write reports, started by whatever `argv` is.

    Nothing where `argv` itself can be asked: ctest's own report names each test already.
    """
    if with_report_option(argv) != list(argv):
        return {}
    more = f"--junitxml={FOLDER}/pytest.xml"
    options = given.get("PYTEST_ADDOPTS", "")
    return {
        "PYTEST_ADDOPTS": options if "--junit" in options else f"{options} {more}".strip(),
        "GTEST_OUTPUT": given.get("GTEST_OUTPUT", f"xml:{FOLDER}/"),
    }


def checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """Check where a caller says that reports will lie.

    Raises:
        BadRequest: If one is no XML file of the workspace, or there are too many.
    """
    for pattern in patterns:
        if not pattern.endswith(".xml") or pattern.startswith("/") or ".." in pattern.split("/"):
            raise BadRequest(
                f"{pattern!r} is no report.", hint="Name JUnit XML below the workspace: build/*.xml, results/junit.xml."
            )
    if len(patterns) > MAX_PATTERNS:
        raise BadRequest(f"There are over {MAX_PATTERNS} patterns of reports.", hint="Use a wildcard: results/*.xml.")
    return tuple(patterns)


def is_report(path: str, patterns: Sequence[str] = ()) -> bool:
    """Say whether a file of a workspace is a report of the run that made it."""
    return is_own_report(path) or any(fnmatch(path, pattern) for pattern in patterns)


def is_own_report(path: str) -> bool:
    """Say whether a report was made only because we asked for it."""
    *folders, name = path.split("/")
    return name == REPORT or FOLDER in folders


def merge_reports(reports: Sequence[TestReport]) -> TestReport | None:
    """Return several reports as one; `None` when there is none."""
    if not reports:
        return None
    failures = [f for r in reports for f in r.failures]
    failed = sum(r.failed for r in reports)
    return TestReport(
        total=sum(r.total for r in reports),
        failed=failed,
        skipped=sum(r.skipped for r in reports),
        failures=failures[:SHOWN],
        failures_left_out=max(0, failed - SHOWN) or None,
    )


def inconsistencies(report: TestReport | None, exit_code: int | None, said: str) -> str | None:
    """Say where a report and the program's end do not fit together; nothing where they do."""
    if report is None or (exit_code is None and report.failed == 0):
        last = next((found[-1] for pattern in _LAST if (found := pattern.findall(said))), None)
        begun = f"; the last test that began is {last}" if last else ""
        if report is None:
            todo = "" if begun else "; pytest, ctest and googletest do, others are named with `report`"
            return f"no JUnit report was written{begun}{todo}"
        return f"the program did not come to its end{begun}"
    if report.total == 0:
        folder = ": ctest looks in the folder of a build, --test-dir build" if "No tests were found" in said else ""
        return f"the report holds no test{folder}"
    if exit_code and report.failed == 0:
        return f"no test failed, but the program exited with {exit_code}"
    if exit_code == 0 and report.failed:
        return "the program exited with 0 all the same"
    return None


def parse(data: bytes) -> TestReport | None:
    """Read a report; `None` when it is none. Never raises."""
    if len(data) > MAX_BYTES or b"<!ENTITY" in data or b"<!DOCTYPE" in data:
        return None
    try:
        root = ElementTree.fromstring(data)  # noqa: S314 - no entities, and bounded
    except (ElementTree.ParseError, ValueError, LookupError):
        return None
    if root.tag not in ("testsuites", "testsuite"):
        return None
    failures: list[TestFailure] = []
    total = skipped = 0
    for case in root.iter("testcase"):
        total += 1
        bad = next((c for c in case if c.tag in ("failure", "error")), None)
        if bad is not None or case.get("status") in ("fail", "failed"):
            failures.append(_failure(case, bad))
        elif any(c.tag == "skipped" for c in case) or case.get("status") in ("notrun", "disabled", "skipped"):
            skipped += 1
    return TestReport(
        total=total,
        failed=len(failures),
        skipped=skipped,
        failures=failures[:SHOWN],
        failures_left_out=max(0, len(failures) - SHOWN) or None,
    )


def _failure(case: ElementTree.Element, bad: ElementTree.Element | None) -> TestFailure:
    said = [bad.get("message") or "", bad.text or ""] if bad is not None else []
    if not any(s.strip() for s in said):
        said = [out.text or "" for out in case if out.tag in ("system-out", "system-err")]
    text = max((s.strip() for s in said), key=len, default="")
    first = said[0].strip() if said else ""
    if first and not text.startswith(first):
        text = f"{first}\n{text}"
    kept = text if len(text) <= MESSAGE else text[:200] + "\n[...]\n" + text[-(MESSAGE - 220) :]
    name = "::".join(filter(None, [case.get("classname"), case.get("name")]))
    seconds = case.get("time")
    return TestFailure(name=name[:300], message=kept, seconds=_number(seconds))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
