"""Findings of static rules."""

from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from gpu_mcp_server.nccl.program_model.syntax import ParsedSource

Severity = Literal["error", "note"]
Rule = Literal[
    "barriers",
    "divergence",
    "orders",
    "barrier count",
    "windows",
    "pairs",
    "requirements",
    "collectives",
    "agreement",
    "signals",
    "offsets",
    "streams",
    "frozen text",
    "verification text",
]


@dataclass(frozen=True, order=True)
class Finding:
    """A place that breaks a rule, or that a rule cannot judge (a note)."""

    path: str
    line: int
    rule: Rule
    severity: Severity
    text: str


def error(rule: Rule, source: ParsedSource, node: Node, text: str) -> Finding:
    """Return a broken rule."""
    return Finding(source.path, source.line(node), rule, "error", text)


def note(rule: Rule, source: ParsedSource, node: Node, text: str) -> Finding:
    """Return something that the rule could not judge."""
    return Finding(source.path, source.line(node), rule, "note", text)
