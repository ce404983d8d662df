"""The script behind `make test-slow`: it is green where tests ran and were right, and nowhere else."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run_slow.sh"
FAILED = ".pytest_cache/v/cache/lastfailed"
RUN = """#!/bin/sh
case "$*" in *--last-failed*) echo again >> ran; exit {again};; esac
echo "$*" >> ran
{first}
exit {code}
"""


@pytest.mark.parametrize(
    ("first", "code", "again", "ends"),
    [
        ("", 0, 5, 0),
        ("", 1, 1, 1),  # python -m pytest, where there is no pytest
        ("", 1, 5, 0),  # a test's process ended, and the test was right when pytest-xdist ran it again
        ("", 2, 5, 2),
        (f"mkdir -p .pytest_cache/v/cache; echo '  \"tests/a.py::test\": true' > {FAILED}", 1, 0, 0),
        (f"mkdir -p .pytest_cache/v/cache; echo '  \"tests/a.py::test\": true' > {FAILED}", 1, 1, 1),
        (f"mkdir -p .pytest_cache/v/cache; echo '  \"tests/a.py::test\": true' > {FAILED}", 1, 5, 5),
        (f"mkdir -p .pytest_cache/v/cache; yes '  \"tests/a.py::test\": true' | head -6 > {FAILED}", 1, 0, 1),
    ],
)
def test_the_slow_tests_are_green_where_all_ran_and_were_right(
    tmp_path: Path, first: str, code: int, again: int, ends: int
):
    python = tmp_path / "python"
    python.write_text(RUN.format(first=first, code=code, again=again))
    python.chmod(0o755)
    assert subprocess.run([SCRIPT, python], cwd=tmp_path, capture_output=True).returncode == ends
    assert len((tmp_path / "ran").read_text().splitlines()) >= 2
