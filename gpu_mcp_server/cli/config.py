"""`config`: what is set, and where."""

import json
from typing import Annotated, Any, cast

import typer

from gpu_mcp_server.cli.output import Json, print_result

app = typer.Typer(help="Show and check the settings.", no_args_is_help=True)


@app.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: Json = False,
) -> None:
    """Print the settings as they are in force."""
    from gpu_mcp_server.settings.server_settings import load_settings

    settings = load_settings()
    sources = settings.config_sources()
    values = settings.model_dump(mode="json")
    if origin:
        listed = {key: {"value": _at(values, key), "origin": where} for key, where in sources.items()}
        lines = [f"{key} = {json.dumps(one['value'])}    # {one['origin']}" for key, one in listed.items()]
        print_result(listed, "\n".join(lines), as_json=as_json)
        return
    lines = [f"{key} = {json.dumps(_at(values, key))}" for key in sources]
    print_result(values, "\n".join(lines), as_json=as_json)


@app.command()
def validate(as_json: Json = False) -> None:
    """Check the settings; exit code 2 and the file, key and reason if they are wrong."""
    from gpu_mcp_server.settings.server_settings import load_settings, user_config_file

    settings = load_settings()
    names = ", ".join(settings.hosts) or "none"
    print_result(
        {"valid": True, "config_file": str(user_config_file()), "hosts": list(settings.hosts)},
        f"the settings are valid; hosts: {names}; your file: {user_config_file()}",
        as_json=as_json,
    )


def _at(values: dict[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    return found
