"""Reads `knowledge_base/guides/*.md` as its README describes them."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

FOLDER = Path(__file__).parents[2] / "knowledge_base" / "guides"
MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Example:
    """A fenced block that names its language, and after it what the test of it needs."""

    language: str
    needs: tuple[str, ...]
    code: str
    line: int


@dataclass(frozen=True)
class Guide:
    """One guide: its front matter, the text of each section by heading, its examples, its links."""

    path: Path
    front: dict[str, Any]
    title: str
    sections: dict[str, str]
    examples: list[Example]
    links: list[str]
    anchors: set[str] = field(default_factory=set)


def read(path: Path) -> Guide:
    """Take a guide apart; a heading of level 2 starts a section."""
    _, front, body = path.read_text(encoding="utf-8").split("---\n", 2)
    lines, offset = body.splitlines(), front.count("\n") + 2
    tokens = MARKDOWN.parse(body)
    heads = [
        (token.map[0], token.tag, tokens[at + 1].content)
        for at, token in enumerate(tokens)
        if token.type == "heading_open" and token.map
    ]
    ends = [line for line, _, _ in heads[1:]] + [len(lines)]
    texts = {name: "\n".join(lines[line + 1 : end]) for (line, _, name), end in zip(heads, ends, strict=True)}
    return Guide(
        path=path,
        front=yaml.safe_load(front),
        title=next(name for _, tag, name in heads if tag == "h1"),
        sections={name: texts[name] for _, tag, name in heads if tag == "h2"},
        examples=[
            Example(*info(token.info), token.content, offset + (token.map or [0])[0] + 2)
            for token in tokens
            if token.type == "fence" and token.info
        ],
        links=[str(child.attrs["href"]) for t in tokens for child in t.children or [] if child.type == "link_open"],
        anchors={slug(name) for _, _, name in heads},
    )


def info(text: str) -> tuple[str, tuple[str, ...]]:
    language, *needs = text.split()
    return language, tuple(needs)


def slug(heading: str) -> str:
    """Name a heading's anchor as GitHub does."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def prose(text: str) -> str:
    """Leave out what is inside fences, tables and inline code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


GUIDES = [read(path) for path in sorted(FOLDER.glob("*.md"))]
