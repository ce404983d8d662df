"""A page of HTML that is read from a file, by night or years later: it needs nothing beside it and asks for nothing."""

from collections.abc import Sequence
from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""No script, no request, whatever a candidate wrote into its source; styles are our own block alone.

Source: W3C, Content Security Policy Level 3, delivery by a meta element (section 3.3).
"""
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100%; font-size: 14px } td { overflow-wrap: anywhere }
th, td { border: 1px solid #d0d7de; padding: .3rem .5rem; text-align: left; vertical-align: top }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto; font-size: 13px }
svg { max-width: 100%; height: auto; background: #fff } .add { background: #dafbe1 } .del { background: #ffebe9 }
details { margin: .3rem 0 } figure { margin: 1rem 0 } figcaption { font-size: 14px }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } pre { background: #161b22 }
 .add { background: #12361f } .del { background: #4a1418 } }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page; `parts` are HTML already, the title is text."""
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escape(shown(title))}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a part with its heading; nothing where there is no body."""
    return f"<h2>{text(title)}</h2>{body}" if body else ""


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
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def items(texts: Sequence[str]) -> str:
    """Return a list of texts."""
    return f"<ul>{''.join(f'<li>{text(each)}</li>' for each in texts)}</ul>" if texts else ""


def block(raw: str) -> str:
    """Return preformatted text."""
    return f"<pre>{text(raw)}</pre>"


def folded(summary: str, body: str) -> str:
    """Return HTML behind a line that opens it."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"
