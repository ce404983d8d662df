"""The tables of tools and settings, generated between markers in the checkout's pages."""

import inspect
import json
from pathlib import Path
from typing import Any

from gpu_mcp_server.errors import BadRequest

BEGIN, END = "<!-- generated: {name} -->", "<!-- end: {name} -->"


def clients_text() -> str:
    """Return the lines and links that register the released package with each client."""
    from gpu_mcp_server.cli.clients import PUBLISHED, one_click, snippets

    lines = snippets(PUBLISHED)
    links = one_click({"command": PUBLISHED[0], "args": PUBLISHED[1:]})
    rows = [
        ("Claude Code", f"`{lines['claude']}`"),
        ("Codex", f"`{lines['codex'].partition(chr(10))[0]}`"),
        ("Gemini CLI", f"`{lines['gemini'].partition(chr(10))[0]}`"),
        ("VS Code", f"[install]({links['vscode']})"),
        ("Cursor", f"[install]({links['cursor']})"),
    ]
    return "\n".join(["| client | |", "| --- | --- |", *(f"| {name} | {how} |" for name, how in rows)]) + "\n"


def toolsets_text() -> str:
    """Return a table with a row for each tool: what it does in one line, and how it is switched on."""
    from gpu_mcp_server.mcp_api.toolset import discover

    lines = ["| tool | what it does |", "| --- | --- |"]
    for toolset in discover().values():
        how = "" if toolset.default else f" (off unless `--toolsets default,{toolset.id}`)"
        lines.append(f"| **{toolset.title}**{how} | |")
        for spec in toolset.tools:
            said = (inspect.getdoc(spec.function) or "").partition("\n")[0]
            lines.append(f"| `{spec.name}` | {said} |")
    return "\n".join(lines) + "\n"


def tools_text() -> str:
    """Return a section a toolset, with a table of parameters for each tool."""
    from gpu_mcp_server.mcp_api.toolset import discover

    lines: list[str] = []
    for toolset in discover().values():
        lines += [f"## {toolset.id}: {toolset.title}", "", toolset.instructions, ""]
        if not toolset.default:
            lines += [f"Off unless `--toolsets default,{toolset.id}`.", ""]
        for spec in toolset.tools:
            schema = spec.to_mcp().parameters
            lines += [f"### `{spec.name}` ({spec.effect})", "", inspect.getdoc(spec.function) or "", ""]
            if schema["properties"]:
                lines += ["| argument | type | default | |", "| --- | --- | --- | --- |"]
                lines += [_argument(name, one, schema) for name, one in schema["properties"].items()] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _argument(name: str, one: dict[str, Any], schema: dict[str, Any]) -> str:
    kind = " \\| ".join(f"`{v}`" for v in one["enum"]) if "enum" in one else str(one.get("type", "any"))
    default = (
        "required"
        if name in schema.get("required", [])
        else (f"`{json.dumps(one['default'])}`" if "default" in one else "")
    )
    return f"| `{name}` | {kind} | {default} | {one.get('description', '')} |"


def settings_text() -> str:
    """Return a table of the settings, from their docstrings."""
    from gpu_mcp_server.settings.host_settings import HOST_KINDS
    from gpu_mcp_server.settings.server_settings import Settings
    from gpu_mcp_server.settings.team_settings import TeamSettings

    blocks = [_table("", Settings), "## A shared server: `[team]`\n\n" + _table("team.", TeamSettings)]
    for model in dict.fromkeys(HOST_KINDS.values()):
        kind = model.model_fields["kind"].default
        blocks.append(f'## A host of kind "{kind}": `[hosts.NAME]`\n\n' + _table("hosts.NAME.", model))
    return "\n".join(blocks)


def _table(prefix: str, model: Any) -> str:
    lines = ["| setting | environment | default | |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        if name == "team":
            continue  # a table of its own
        key = prefix + name
        variable = "GPU_MCP_" + key.upper().replace(".", "__")
        default = (
            "required" if field.is_required() else ("" if field.default_factory else f"`{json.dumps(field.default)}`")
        )
        text = " ".join((field.description or "").split())
        lines.append(f"| `{key}` | `{variable}` | {default} | {text} |")
    return "\n".join(lines) + "\n"


def replace_marked_part(before: str, name: str, generated: str) -> str:
    """Return `before` with the part between the markers replaced.

    Raises:
        BadRequest: If it has no such markers: then it is no page of ours.
    """
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if begin not in before or end not in before:
        raise BadRequest(f"A page has no markers {begin} and {end}.", hint="Run it in a checkout, or add the markers.")
    return before[: before.index(begin)] + f"{begin}\n\n{generated}\n{end}" + before[before.index(end) + len(end) :]


def write_pages(folder: Path, *, check: bool) -> list[str]:
    """Write docs/tools.md, docs/settings.md and the tables of README.md beside their folder; return what was stale.

    Args:
        folder: Where the pages are.
        check: Whether nothing is to be changed.

    Raises:
        BadRequest: If a page is missing or has no markers.
    """
    readme = folder.resolve().parent / "README.md"
    pages = (
        ("tools", folder / "tools.md", tools_text),
        ("settings", folder / "settings.md", settings_text),
        ("toolsets", readme, toolsets_text),
        ("clients", readme, clients_text),
    )
    stale: list[str] = []
    for name, page, text in pages:
        if not page.exists():
            raise BadRequest(f"There is no page {page}.", hint="Run it in a checkout.")
        before = page.read_text(encoding="utf-8")
        after = replace_marked_part(before, name, text())
        if after != before:
            stale += [str(page)] if str(page) not in stale else []
            if not check:
                page.write_text(after, encoding="utf-8")
    return stale
