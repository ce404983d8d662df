"""Reports of tests in JUnit's XML, as pytest, ctest (3.21 and later) and googletest write them.

Source: reports of pytest 9, ctest 3.25 and the schema of googletest's XML output.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from gpu_mcp_server.models.job import TestFailure, TestReport

REPORT = ".gpu-mcp-tests.xml"
SHOWN = 10
MESSAGE = 600
MAX_BYTES = 16 << 20


def asking(argv: Sequence[str]) -> list[str]:
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
