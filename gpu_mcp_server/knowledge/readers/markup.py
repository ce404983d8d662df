"""Documents in Markdown, reStructuredText and AsciiDoc, and tutorials in Python, as sections."""

import re
from collections.abc import Sequence

from gpu_mcp_server.knowledge.readers.defined_names import as_definition, row_entries
from gpu_mcp_server.knowledge.readers.entries import SECTION_WORDS, Entry, Section, section_entries, words

TUTORIAL_WORDS = 15
DEFINING_WORDS = 2
"""Of a section of a user's page, where a heading may be a name and the text a few words on it."""

_FENCE = re.compile(r"^\s{0,3}(```|~~~)")
_HEADING = re.compile(r"^(#{1,5})\s+(.*?)\s*#*$")
_ADORNMENT = re.compile(r"^([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
_DIRECTIVE = re.compile(
    r"^\.\. +(?:c|cpp|py):(?:function|type|struct|macro|enum|member|class|method|enumerator|data|var)::\s*(.*)$"
)
_DROPPED = re.compile(
    r"^\.\. (?:meta|toctree|image|figure|raw|contents|include|doxygen\w+)::.*(?:\n[ \t]+.*)*", re.MULTILINE
)
_ROLE = re.compile(r":\w+(?::\w+)?:`~?\.?([^`<]*?)(?:\s*<[^`]*>)?`")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+$")


class _Sections:
    """Collects the sections of a document; the path follows from the levels of the headings."""

    def __init__(self) -> None:
        self.found: list[Section] = []
        self.path: list[str] = []
        self.symbols: list[str] = []
        self.lines: list[str] = []
        self.first_line = 1

    def close(self, last_line: int, text: str | None = None, *, kept: bool = False) -> None:
        body = "\n".join(self.lines) if text is None else text
        if body.strip() or (kept and self.symbols):
            path = tuple(part for part in self.path if part)
            symbols = tuple(dict.fromkeys(self.symbols))
            self.found.append(Section(path, body, self.first_line, last_line, symbols))
        self.lines, self.symbols = [], []

    def descend(self, depth: int, title: str) -> None:
        self.path = [*self.path[:depth], *[""] * (depth - len(self.path)), title]


def markdown_sections(text: str) -> list[Section]:
    """Return the sections of a Markdown document; headings within fenced code are no headings."""
    sections, fence = _Sections(), ""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        marker = _FENCE.match(line)
        if marker and (not fence or marker.group(1) == fence):
            fence = "" if fence else marker.group(1)
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            sections.lines.append(line)
            continue
        sections.close(number - 1)
        title = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(2))
        sections.descend(len(heading.group(1)) - 1, title)
        sections.first_line = number
    sections.close(len(lines))
    return sections.found


def rst_sections(text: str, *, variables: bool = False) -> list[Section]:
    """Return the sections of a reStructuredText document; API directives open one and name its symbols.

    Args:
        text: The document.
        variables: Whether titles in capitals are environment variables.
    """
    sections, levels, lines = _Sections(), list[str](), text.split("\n")
    at = 0
    while at < len(lines):
        line, after = lines[at], lines[at + 1 : at + 3]
        over = _over_and_under(line, after)
        if over or _underlined(line, after):
            sections.close(at, _plain_rst("\n".join(sections.lines)))
            style = ("over" if over else "under") + (line[0] if over else after[0][0])
            levels = levels[: levels.index(style) + 1] if style in levels else [*levels, style]
            title = _plain_title((after[0] if over else line).strip())
            sections.descend(len(levels) - 1, title)
            sections.first_line = at + 1
            if variables and _VARIABLE.match(title):
                sections.symbols.append(title)
            at += 3 if over else 2
            continue
        directive = _DIRECTIVE.match(line)
        if directive:
            if any(each.strip() and not _DIRECTIVE.match(each) for each in sections.lines):
                sections.close(at, _plain_rst("\n".join(sections.lines)))
                sections.first_line = at + 1
            name = _declared_name(directive.group(1))
            sections.symbols += [name] if name else []
        sections.lines.append(line)
        at += 1
    sections.close(len(lines), _plain_rst("\n".join(sections.lines)))
    return sections.found


def _over_and_under(line: str, after: Sequence[str]) -> bool:
    if len(after) < 2 or not _ADORNMENT.match(line) or not after[0].strip() or _ADORNMENT.match(after[0]):
        return False
    return bool(_ADORNMENT.match(after[1])) and after[1][:1] == line[:1]


def _underlined(line: str, after: Sequence[str]) -> bool:
    if not after or not line.strip() or line.startswith((" ", "\t", "..")) or _ADORNMENT.match(line):
        return False
    return bool(_ADORNMENT.match(after[0])) and len(after[0].rstrip()) >= len(line.strip()) - 2


def _plain_title(title: str) -> str:
    return re.sub(r":\w+:`([^`<]*)[^`]*`|``?([^`]*)``?", lambda m: m.group(1) or m.group(2) or "", title)


def _declared_name(declaration: str) -> str | None:
    bare = re.sub(r"<[^()]*>", "", declaration)
    found = re.search(r"([A-Za-z_][\w:.]*)\s*(?:\(|$)", bare) or re.search(r"(\w+)\s*$", bare)
    return found.group(1) if found else None


def _plain_rst(text: str) -> str:
    text = re.sub(r"^\.\. _[^:]*:\s*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\.\. +(?:c|cpp|py):\w+::\s*", "", text, flags=re.MULTILINE)
    text = _ROLE.sub(r"\1", _DROPPED.sub("", text))
    text = re.sub(
        r"^\.\. (?:code-block|code|sourcecode|tab-item|tab-set|note|warning|tip)::\s*", "", text, flags=re.MULTILINE
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def asciidoc_sections(text: str) -> list[Section]:
    """Return the sections of an AsciiDoc document; a Khronos `refpage` opens one and names its symbol."""
    sections, block = _Sections(), False
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if re.match(r"^(----|\.\.\.\.)\s*$", line):
            block = not block
        heading = None if block else re.match(r"^(={1,6})\s+(\S.*)$", line)
        page = re.match(r"^\[open,refpage='([^']+)'(?:,desc='([^']*)')?", line)
        if heading or page:
            sections.close(number - 1, _plain_asciidoc(sections.lines), kept=True)
            sections.first_line = number
        if heading:
            sections.descend(len(heading.group(1)) - 1, re.sub(r"[`*{}]", "", heading.group(2)))
        elif page:
            sections.symbols = [page.group(1)]
            sections.lines.append(f"{page.group(1)}: {page.group(2) or ''}")
        else:
            sections.lines.append(line)
    sections.close(len(lines), _plain_asciidoc(sections.lines))
    return [Section((*s.path, *s.symbols[:1]), s.text, s.first_line, s.last_line, s.symbols) for s in sections.found]


def _plain_asciidoc(lines: Sequence[str]) -> str:
    text = "\n".join(x for x in lines if not re.match(r"^(//|include::|ifdef|ifndef|endif|\[\[|:\w)", x))
    text = re.sub(r"<<[^,>]*,\s*([^>]*)>>", r"\1", text)
    text = re.sub(r"<<([^>]*)>>", r"\1", text)
    text = re.sub(r"\{(CL_\w+|cl\w+)\}", r"\1", text).replace("{cpp}", "C++")
    return re.sub(r"^--\s*$", "", text, flags=re.MULTILINE)


def tutorial_sections(text: str, place: str) -> list[Section]:
    """Return the sections of a tutorial in Python (sphinx-gallery): docstring, then blocks of prose and code."""
    found: list[Section] = []
    docstring = re.match(r'\s*[rR]?"""(.*?)"""', text, re.DOTALL)
    path, rest, start = (place,), text, 1
    if docstring:
        said = docstring.group(1)
        titles = [line for line in said.strip().split("\n") if line.strip() and not _ADORNMENT.match(line.strip())]
        path = (titles[0].strip(),) if titles else path
        start = said.count("\n") + 1
        found.append(Section(path, _plain_rst(said), 1, start))
        rest = text[docstring.end() :]
    lines, first, current = list[str](), start, path
    for number, line in enumerate(rest.split("\n"), start):
        if re.match(r"^# %%|^#{20,}", line):
            if words("\n".join(lines)) > TUTORIAL_WORDS:
                found.append(Section(current, "\n".join(lines), first, number - 1))
            lines, first = [], number + 1
        elif re.match(r"^# (-{3,}|~{3,}|={3,})\s*$", line) and lines:
            title = lines[-1].lstrip("# ").strip()
            current = (*path, title) if title else current
        else:
            lines.append(re.sub(r"^# ?", "", line))
    if words("\n".join(lines)) > TUTORIAL_WORDS:
        found.append(Section(current, "\n".join(lines), first, text.count("\n") + 1))
    return found


def document_entries(
    text: str,
    place: str,
    form: str,
    *,
    variables: bool = False,
    kind: str = "guide",
    apart: bool = False,
    defining: bool = False,
) -> list[Entry]:
    """Return the entries of one document.

    Args:
        text: The document.
        place: Its path, for citations.
        form: `markdown`, `rst`, `asciidoc`, `tutorial` or `text`.
        variables: Whether sections named in capitals are environment variables.
        kind: Kind of sections that are not about one symbol.
        apart: Whether each section stands for itself, however small.
        defining: Whether headings and rows of tables that are names define them.
    """
    if form == "rst":
        sections = rst_sections(text, variables=variables)
    elif form == "asciidoc":
        sections = asciidoc_sections(text)
    elif form == "tutorial":
        sections = tutorial_sections(text, place)
    elif form == "text":
        sections = [Section((place.rsplit("/", 1)[-1],), text, 1, text.count("\n") + 1)]
    else:
        sections = markdown_sections(text)
    found = section_entries(
        sections,
        place,
        kind=kind,
        symbol_kind="env" if variables else "function",
        apart=apart,
        shortest=DEFINING_WORDS if defining else SECTION_WORDS,
    )
    return [*map(as_definition, found), *row_entries(sections, place)] if defining else found
