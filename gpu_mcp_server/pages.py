"""Pages of the documentation that agents can read as resources."""

from pathlib import Path

CANDIDATES = "candidates.md"


def page(name: str) -> str:
    """Return a page: from the installed package, or from the checkout that this is."""
    installed = Path(__file__).parent / "_content" / "docs" / name
    path = installed if installed.is_file() else Path(__file__).parents[1] / "docs" / name
    return path.read_text(encoding="utf-8")
