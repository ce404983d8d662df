"""What comes along with the code: pages that agents can read, recipes, examples."""

from pathlib import Path

CANDIDATES, CANDIDATES_URI = "candidates.md", "gpu-mcp://docs/candidates"
"""What a candidate is: its page, and its address for agents."""


def content(name: str) -> Path:
    """Return a folder or file of the project: from the installed package, or from the checkout that this is."""
    installed = Path(__file__).parent / "_content" / name
    return installed if installed.exists() else Path(__file__).parents[1] / name


def page(name: str) -> str:
    """Return a page of the documentation."""
    return content(f"docs/{name}").read_text(encoding="utf-8")
