"""The reference's tables (tools, settings, commands, fields), generated between markers in the checkout's pages."""

import inspect
import json
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.models._base import read_field_docs

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
    """Return a table with a row for each toolset: its tools, and how it is switched on."""
    from gpu_mcp_server.mcp_api.toolset import discover

    lines = ["| toolset | tools |", "| --- | --- |"]
    for toolset in discover().values():
        how = "" if toolset.default else f" (off; `--toolsets default,{toolset.id}`)"
        lines.append(f"| {toolset.title}{how} | {', '.join(f'`{spec.name}`' for spec in toolset.tools)} |")
    return "\n".join(lines) + "\n"


def first_result_text(results: Path) -> str:
    """Return the demonstration's table as the page on the first hour has it, the newest run first.

    Args:
        results: Folder of the benchmarks' results.

    Raises:
        BadRequest: If there is no such table.
    """
    page = results / "first-hour.md"
    found = re.search(r"^candidate  .+?(?=\n\n)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise BadRequest(f"{page} has no table of the demonstration.", hint="Run benchmarks/first_hour/engineer.py.")
    return f"```text\n{found[0]}\n```\n"


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
    """Return tables of the settings, from their docstrings; hosts' common ones once, then those of each kind."""
    from gpu_mcp_server.settings.host_settings import HOST_KINDS, CommonHostSettings
    from gpu_mcp_server.settings.server_settings import Settings
    from gpu_mcp_server.settings.team_settings import TeamSettings

    blocks = [_table("", Settings), "## A shared server: `[team]`\n\n" + _table("team.", TeamSettings)]
    common = read_field_docs(CommonHostSettings)
    blocks.append("## Every host: `[hosts.NAME]`\n\n" + _table("hosts.NAME.", CommonHostSettings))
    for model in dict.fromkeys(HOST_KINDS.values()):
        kind = model.model_fields["kind"].default
        same = {name for name, text in common.items() if read_field_docs(model).get(name) == text}
        title = f'## A host of kind "{kind}": `[hosts.NAME]`, besides the settings of every host'
        blocks.append(f"{title}\n\n" + _table("hosts.NAME.", model, without=same))
    return "\n".join(blocks)


def _table(prefix: str, model: Any, without: Collection[str] = ()) -> str:
    lines = ["| setting | environment | default | |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        if name == "team" or name in without:
            continue  # tables of their own
        key = prefix + name
        variable = "GPU_MCP_" + key.upper().replace(".", "__")
        default = (
            "required" if field.is_required() else ("" if field.default_factory else f"`{json.dumps(field.default)}`")
        )
        text = " ".join(_about(model, name).split())
        lines.append(f"| `{key}` | `{variable}` | {default} | {text} |")
    return "\n".join(lines) + "\n"


def _about(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].description or read_field_docs(model).get(name, "")


def commands_text() -> str:
    """Return a section a command, with a table of its arguments and options."""
    import typer.main

    from gpu_mcp_server.cli.app import app

    lines: list[str] = []

    def describe(command: Any, path: str) -> None:
        lines.extend([f"## `{path}`", "", " ".join((command.help or "").split()), ""])
        rows = [_option(one) for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
        if rows:
            lines.extend(["| argument or option | default | |", "| --- | --- | --- |", *rows, ""])
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                describe(child, f"{path} {name}")

    describe(typer.main.get_command(app), "gpu-mcp-server")
    return "\n".join(lines).rstrip() + "\n"


def _option(one: Any) -> str:
    named = (
        ", ".join(f"`{word}`" for word in (*one.opts, *one.secondary_opts))
        if one.param_type_name == "option"
        else f"`{one.name}`"
    )
    absent = one.default is None or callable(one.default) or one.default in (False, [], (), "")
    default = "required" if one.required else ("" if absent else f"`{one.default}`")
    return f"| {named} | {default} | {' '.join((one.help or '').split())} |"


def results_text() -> str:
    """Return a table of fields for what each tool returns, and for the models within, each once."""
    from gpu_mcp_server.mcp_api.toolset import discover

    returned: dict[type[BaseModel], list[str]] = {}
    for toolset in discover().values():
        for spec in toolset.tools:
            model = get_type_hints(spec.function)["return"]
            returned.setdefault(model, []).append(f"`{spec.name}`")
    seen = {model: f"What {', '.join(names)} returns." for model, names in returned.items()}
    return _models_text(seen)


def plan_text() -> str:
    """Return a table of keys for a headless run's plan, and for the tables within."""
    from gpu_mcp_server.models.run_plan import RunPlan

    return _models_text({RunPlan: "The top of the file."}, with_defaults=True)


def _models_text(said: dict[type[BaseModel], str], *, with_defaults: bool = False) -> str:
    lines: list[str] = []
    known = list(said)
    for model in known:  # grows: the models of its fields follow
        about = (model.__doc__ or "").partition("\n")[0]
        lines += [f"## {model.__name__}", "", f"{about} {said.get(model, '')}".strip(), ""]
        if model.model_fields:
            lines += ["| key | type | default | |", "| --- | --- | --- | --- |"] if with_defaults else []
            lines += [] if with_defaults else ["| field | type | |", "| --- | --- | --- |"]
        for name, field in model.model_fields.items():
            within = [each for each in _models_in(field.annotation) if each not in known]
            known += within
            text = " ".join(_about(model, name).split()).replace("|", "\\|")
            default = f" {_default(field)} |" if with_defaults else ""
            lines.append(f"| `{name}` | {_type_name(field.annotation)} |{default} {text} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    plain = isinstance(field.default, str | int | float | bool) and field.default != ""
    return f"`{json.dumps(field.default)}`" if plain else ""


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(model for one in get_args(annotation) for model in _models_in(one)))


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        name = annotation.__name__
        return f"[{name}](#{name.lower()})" if issubclass(annotation, BaseModel) else name.replace("NoneType", "null")
    origin, within = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in within)
    if origin is Annotated:
        return _type_name(within[0])
    if origin in (Union, UnionType):
        return " or ".join(_type_name(one) for one in within)
    if origin is dict:
        return f"{_type_name(within[1])} by name"
    return f"list of {_type_name(within[0])}" if within else str(annotation)


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
    """Write the generated parts of docs and of README.md beside it; return the pages that were stale.

    Args:
        folder: The folder of the documentation.
        check: Whether nothing is to be changed.

    Raises:
        BadRequest: If a page is missing or has no markers.
    """
    root = folder.resolve().parent
    readme, install = root / "README.md", folder / "tutorial" / "install.md"
    first_result = partial(first_result_text, root / "benchmarks" / "results")
    pages = (
        *((name, folder / "reference" / f"{name}.md", text) for name, text in REFERENCE.items()),
        *(("first-result", page, first_result) for page in (readme, install)),
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


REFERENCE = {
    "tools": tools_text,
    "settings": settings_text,
    "commands": commands_text,
    "results": results_text,
    "plan": plan_text,
}
"""Pages of docs/reference and what generates their tables."""
