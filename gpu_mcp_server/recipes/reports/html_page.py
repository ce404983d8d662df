"""A page of HTML that is read from a file, by night or years later: it needs nothing beside it and asks for nothing."""

from collections.abc import Sequence
from html import escape

from gpu_mcp_server.package_files import PAGE_STYLE, REPORT_STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""No script, no request, whatever a candidate wrote into its source; styles are our own block alone.

Source: W3C, Content Security Policy Level 3, delivery by a meta element (section 3.3).
"""

SHORT = 24
"""Characters of a cell that does not break."""


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page; `parts` are HTML already, the title is text."""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(shown(title))}</title>'
    style = "".join(file.read_text(encoding="utf-8") for file in (PAGE_STYLE, REPORT_STYLE))
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def heading(title: str, tag: str, shade: str, facts: str) -> str:
    """Return what a page begins with: its title, how it stands as a coloured word, and what else it is."""
    word = f'<span class="tag {shade}">{text(tag)}</span>' if tag else ""
    return f'<div class="head"><h1>{text(title)}</h1>{word}<span class="facts">{text(facts)}</span></div>'


def figures(found: Sequence[tuple[str, str]]) -> str:
    """Return large numbers, each with what it is."""
    return (
        f'<div class="figures">{"".join(f"<div><b>{text(a)}</b><span>{text(b)}</span></div>" for a, b in found)}</div>'
    )


def picture(svg: str) -> str:
    """Return a picture of ours in the colours of the page."""
    return f'<div class="picture fit">{svg}</div>' if svg else ""


def section(title: str, body: str) -> str:
    """Return a part with its heading; nothing where there is no body."""
    return f'<h2>{text(title)}</h2><section class="card">{body}</section>' if body else ""


def text(raw: str) -> str:
    """Return text as HTML: no markup of it is left, and no character that hides or turns what is written."""
    return escape(shown(raw))


def shown(raw: str) -> str:
    """Return text whose control and bidirectional characters are written out, but for line ends and tabs.

    Source: Trojan Source, CVE-2021-42574: U+202A-202E and U+2066-2069 reorder what is seen.
    """
    return "".join(c if c in "\n\t" or (c.isprintable() or c == " ") else f"\\u{ord(c):04x}" for c in raw)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts."""
    head = "".join(f"<th>{text(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(raw: str) -> str:
    """Return a cell; a number or a name stays on one line."""
    return f'<td class="nowrap">{text(raw)}</td>' if len(raw) <= SHORT else f'<td class="t">{text(raw)}</td>'


def items(texts: Sequence[str]) -> str:
    """Return a list of texts."""
    return f"<ul>{''.join(f'<li>{text(each)}</li>' for each in texts)}</ul>" if texts else ""


def block(raw: str) -> str:
    """Return preformatted text."""
    return f'<pre class="plain">{text(raw)}</pre>'


def folded(summary: str, body: str) -> str:
    """Return HTML behind a line that opens it."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"
