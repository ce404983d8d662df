"""HTML pages as Markdown, so that they are divided as Markdown is. No link is followed, no script is read."""

import re
from html.parser import HTMLParser

_DROPPED = frozenset({"script", "style", "nav", "header", "footer", "noscript", "template", "svg", "form", "aside"})
_HEADINGS = {f"h{level}": level for level in range(1, 6)}
_BREAKS = frozenset(
    {"p", "div", "section", "ul", "ol", "dl", "table", "blockquote", "article", "main", "br", "dt", "dd"}
)


class _Page(HTMLParser):
    """Writes what a reader would see."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._dropped = 0
        self._code = False
        self._title = False
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            self._dropped += 1
        elif self._dropped:
            return
        elif tag in _HEADINGS:
            self.parts.append(f"\n\n{'#' * _HEADINGS[tag]} ")
        elif tag == "pre":
            self.parts.append("\n\n```\n")
            self._code = True
        elif tag == "li":
            self.parts.append("\n- ")
        elif tag == "tr":
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag == "title":
            self._title = True
        elif tag in _BREAKS:
            self.parts.append("\n\n" if tag != "br" else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _DROPPED:
            self._dropped = max(0, self._dropped - 1)
        elif tag == "pre" and not self._dropped:
            self.parts.append("\n```\n")
            self._code = False
        elif tag in _HEADINGS and not self._dropped:
            self.parts.append("\n\n")
        elif tag == "title":
            self._title = False

    def handle_data(self, data: str) -> None:
        if self._title:
            self.title += data
        elif not self._dropped:
            self.parts.append(data if self._code else re.sub(r"\s+", " ", data))


def page_markdown(text: str) -> str:
    """Return a page's text with its headings, lists and code, as Markdown; what cannot be parsed is left out."""
    page = _Page()
    page.feed(text)
    page.close()
    body = re.sub(r"[¶]", "", "".join(page.parts))
    body = re.sub(r"^(#+ .*?)[ \t]*$", r"\1", re.sub(r"[ \t]+\n", "\n", body), flags=re.MULTILINE)
    body = re.sub(r"\n{3,}", "\n\n", body).strip()
    if page.title.strip() and not re.search(r"^# ", body, re.MULTILINE):
        body = f"# {' '.join(page.title.split())}\n\n{body}"
    return body
