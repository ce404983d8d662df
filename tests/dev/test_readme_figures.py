"""README's figures are of the judge that is here: measured a day before its last change at the earliest."""

import re
import subprocess
from datetime import date, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "first-hour.md"
"""Page from which README's first result is generated (gpu_mcp_server/dev/generated_pages.py)."""
SLACK = timedelta(days=1)
"""A change is measured before it is committed, and may land a day later."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def test_the_first_result_is_not_older_than_the_judge():
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this checkout has no history of the judge")
    measured = re.search(r"^(\d{4}-\d\d-\d\d), ", RESULTS.read_text(encoding="utf-8"), re.MULTILINE)
    changed = git("log", "-1", "--format=%ad", "--date=format:%Y-%m-%d", "--", "gpu_mcp_server/judge")

    assert measured is not None and changed
    assert date.fromisoformat(measured[1]) >= date.fromisoformat(changed) - SLACK, (
        f"The judge changed on {changed}, README's table is of {measured[1]}. Play `make demo`, put its table and date "
        f"into {RESULTS.relative_to(ROOT)}, then `python -m gpu_mcp_server.dev pages`."
    )


def test_the_readme_has_that_result():
    table = re.search(r"^candidate  .+?(?=\n\n)", RESULTS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    assert table is not None and table[0] in (ROOT / "README.md").read_text(encoding="utf-8")
