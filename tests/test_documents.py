"""The documents are true and short: files, folders, links and headings that they name are there; pages keep limits."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpu_mcp_server"
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *(ROOT / folder / "README.md" for folder in ("knowledge_base", "knowledge_base/specs", "agent_recipes")),
]
"""Results of benchmarks and the changelog are history: they name files as they were."""
DOCS = ROOT / "docs"
TOP = ("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
LIMITED = [
    *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "reference"),
    *(ROOT / name for name in TOP),
]
"""All documents but the reference and the tables of benchmarks/results."""
MAX_WORDS, MAX_SYSTEM_WORDS = 1_500, 1_200
"""Of any page but the reference, and of those that explain the judge and the architecture."""
MAX_CHANGELOG_LINES, MAX_CHANGELOG_WORDS = 100, 30
"""Of a version, and of a line."""
OF_US = (".py", ".c", ".cu", ".cuh", ".cpp", ".ptx", ".md", ".sql", ".toml", ".txt")
ELSEWHERE = {
    *("config.toml", "problem.toml", "program.toml", "extractor.toml", "reference.py", "reference_torch.py"),  # users'
    *("first.c", "wrong.c", "first.cu", "second.cu"),  # users', in the tutorials
    *("best.txt", "recipes/RUN_ID", "recipes/suites", "ncclx_kernels.cuh", "candidate.py"),  # made by us
}
"""Files that users write or that the server makes: none of them lies here."""


@cache
def known() -> tuple[frozenset[str], frozenset[str]]:
    """Return all files and folders of the repository, and the first names of paths in it, from any room."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    listed = done.stdout.splitlines() or [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file()]
    files = [name for name in listed if (ROOT / name).exists()]
    folders = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    heads = {p.name for top in (ROOT, PACKAGE, *PACKAGE.iterdir()) if top.is_dir() for p in top.iterdir() if p.is_dir()}
    return frozenset(files) | folders, frozenset(heads)


def is_path(word: str) -> bool:
    """Say whether a word can only mean a file or a folder of this repository."""
    if not re.fullmatch(r"[\w<>*][\w.<>*{},-]*(/[\w.<>*{},-]+)*/?", word) or word.rstrip("/") in ELSEWHERE:
        return False
    head, slash, _ = word.partition("/")
    if PurePosixPath(word).stem.isupper() and word.endswith(OF_US) and not word.endswith(".md"):
        return False  # FILE.toml, OLD.ptx: to be replaced by a name
    return bool(PurePosixPath(word).stem) and (word.endswith(OF_US) or (bool(slash) and head in known()[1]))


def is_there(word: str) -> bool:
    """Say whether a file or folder ends with these names; `<name>` and `*` stand for any name."""
    pattern = "[^/]+".join(re.escape(part) for part in re.split(r"<\w+>|\*\*?", word.rstrip("/")))
    return any(re.search(rf"(?:^|/){pattern}$", path) for path in known()[0])


def named(page: Path) -> Iterator[str]:
    for quoted in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        yield from (word.partition("::")[0].rstrip(",.;:") for word in quoted.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_file_and_folder_that_a_page_names_is_there(page: Path):
    assert [word for word in named(page) if is_path(word) and not is_there(word)] == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and mkdocs make them of headings without punctuation between spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_to_a_heading_in_it(page: Path):
    gone: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        to = page.parent / name if name else page
        if "://" not in link and not (to.exists() and (not anchor or anchor in headings(to))):
            gone.append(link)
    assert gone == []


def test_the_index_leads_to_every_page():
    index = DOCS / "index.md"
    led_to = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)", index.read_text(encoding="utf-8"))}
    assert [page for page in DOCS.rglob("*.md") if page != index and page.resolve() not in led_to] == []


def test_the_site_has_every_page():
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", LIMITED, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_page_is_short(page: Path):
    """Words as wc counts them; only the reference, which nobody reads from end to end, may be longer."""
    limit = MAX_SYSTEM_WORDS if page.parent.name == "explanation" else MAX_WORDS
    assert len(page.read_text(encoding="utf-8").split()) <= limit


def test_the_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_changelog_keeps_its_form():
    """Keep a Changelog: versions, newest first, each with groups of lines; short enough that a visitor reads it."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.MULTILINE)
    groups = set(re.findall(r"^### (.+)$", text, re.MULTILINE))

    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert len(part.splitlines()) <= MAX_CHANGELOG_LINES, part.partition("\n")[0]
        assert max(len(line.split()) for line in part.splitlines()) <= MAX_CHANGELOG_WORDS


def test_a_name_that_is_gone_is_told_from_one_that_is_there():
    gone = "hostd/gate.py", "judge/no_room/", "judge/timing/no_such_rounds.py", "gpu_mcp_server/<room>/no.py", "gone.cu"
    there = "hostd/protocol.py", "judge/timing/", "gpu_mcp_server/cli/<noun>.py", "tests/toolsets", "calls.c"
    assert [word for word in (*gone, *there) if not is_path(word)] == []
    assert [is_there(word) for word in (*gone, *there)] == [False] * len(gone) + [True] * len(there)
    assert not any(is_path(word) for word in ("/proc/self/mem", "tools/list", "problem.toml", "--kind", "3.8", "x.y"))


@pytest.mark.parametrize("folder", ["", "hostd", "judge", "services"])
def test_the_table_of_rooms_has_every_room(folder: str):
    text = (ROOT / "docs" / "reference" / "rooms.md").read_text(encoding="utf-8")
    start = text.index(f"| room of `{folder}/` |" if folder else "| room | what it is for |")
    rows = text[start : text.index("\n\n", start)].splitlines()[2:]
    told = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    rooms = {p.parent.name for p in (PACKAGE / folder).glob("*/__init__.py")}
    assert rooms <= told


def test_the_rooms_that_a_room_names_are_there():
    """`judge/timing` in the first words of a package; one without a slash may be any word."""
    missing = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in PACKAGE.rglob("__init__.py")
        for word in re.findall(r"[a-z_]+(?:/[a-z_]+)+", ast.get_docstring(ast.parse(path.read_bytes())) or "")
        if word.partition("/")[0] in known()[1] and not any(is_there(word + end) for end in ("", ".py", ".md"))
    ]
    assert missing == []


def test_what_to_add_where_names_at_most_a_handful_of_places():
    rows = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    kinds = {what.split(",")[0] for what, _ in rows}
    assert kinds >= {
        *("a cheat", "a kernel language", "a kind of host", "a profiler", "a problem format", "a documentation source"),
        *("a GPU's peak figures", "a service", "a check of the judge", "a sandbox rule", "a tool", "a setting"),
    }
    words = {what: re.findall(r"`([^`\s]+)`", where) for what, where in rows}
    places = {what: [word for word in found if is_path(word)] for what, found in words.items()}
    texts = {
        what: " ".join((ROOT / place).read_text(encoding="utf-8") for place in found if (ROOT / place).is_file())
        for what, found in places.items()
    }
    names = [(what, word) for what, found in words.items() for word in found if word.isidentifier()]
    assert [(what, name) for what, name in names if not re.search(rf"\b{name}\b", texts[what])] == []
    assert {what for what, found in places.items() if not 1 <= len(found) <= 4} == set()
