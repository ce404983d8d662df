"""A hook of mkdocs: links from a page to files outside docs/ lead to the repository on the site."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text with each link that leaves docs/ made absolute; mkdocs calls it by this name."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def absolute(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[1]))
        if path.startswith("docs/"):
            return found[0]
        return f"]({config['repo_url']}/blob/main/{path}{found[2] or ''})"

    return LINK.sub(absolute, markdown)
