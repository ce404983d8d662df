"""Paths of the package's files: sources that run elsewhere, pages that agents can read, recipes, examples.

No other module counts the folders above itself: one that moves would look beside what it wants, and often find nothing.
"""

import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
HOSTD = PACKAGE / "hostd"
"""Sources that travel to hosts as one zip file."""
JUDGE = PACKAGE / "judge"
"""Sources that travel to hosts as a tree."""
WORKERS = PACKAGE / "workers"
"""Programs that run by themselves, most of them in sandboxes."""
CALL_FILES = (
    WORKERS / "program_hooks.py",
    WORKERS / "parts" / "call_writer.py",
    WORKERS / "parts" / "launch_hooks.py",
    JUDGE / "adapters" / "call_records.py",
    JUDGE / "adapters" / "kernel_launches.py",
)
"""What lies beside a program whose calls are recorded or replaced; of the judge what makes recorded calls again."""
_INCLUDED = re.compile(
    r"^from gpu_mcp_server\.(judge|judge\.candidate|workers\.parts)\.(\w+) import [^\n]*$", re.MULTILINE
)

PAGE_STYLE = PACKAGE / "web" / "dashboard" / "static" / "app.css"
"""How pages look: those of the server, and reports as single files."""
REPORT_STYLE = PACKAGE / "recipes" / "reports" / "report.css"
"""What reports have besides."""

CANDIDATES, PROBLEM_FORMATS = "reference/candidates.md", "reference/problem-formats.md"
AGENT_PAGES = {"gpu-mcp://docs/candidates": CANDIDATES, "gpu-mcp://docs/problem-formats": PROBLEM_FORMATS}
"""Pages that agents read, by address: what a candidate is, and in which files problems come."""


def content_path(name: str) -> Path:
    """Return a folder or file of the project: from the installed package, or from the checkout that this is."""
    installed = PACKAGE / "_content" / name
    return installed if installed.exists() else PACKAGE.parent / name


@cache
def worker_source(name: str) -> str:
    """Return the source of one of the programs in `WORKERS`, with modules of ours in place of their imports."""
    text = (WORKERS / f"{name}.py").read_text(encoding="utf-8")

    def included(found: re.Match[str]) -> str:
        return (PACKAGE / found[1].replace(".", "/") / f"{found[2]}.py").read_text(encoding="utf-8")

    return _INCLUDED.sub(included, text)


def page(name: str) -> str:
    """Return a page of the documentation."""
    return content_path(f"docs/{name}").read_text(encoding="utf-8")


def page_title(text: str) -> str:
    """Return the title of a page, which is its first heading."""
    return text.partition("\n")[0].removeprefix("# ")
