"""The command tree."""

import sys
from typing import Annotated

import typer

from gpu_mcp_server.cli import (
    audit,
    backend,
    call,
    config,
    doctor,
    files,
    generated_docs,
    history,
    hosts,
    in_process_client,
    init,
    install,
    jobs,
    knowledge,
    login,
    nccl,
    recipe,
    sandbox,
    selftest,
    serve,
    status,
    store,
    token,
    user,
)
from gpu_mcp_server.cli.output import Json, fail
from gpu_mcp_server.errors import BadRequest, GpuMcpError

OFFERING = ("serve", "call", "status", "history", "run", "push", "logs", "cancel")
"""Commands that offer tools, or call one: those that options before the command are for."""

app = typer.Typer(
    name="gpu-mcp-server",
    help="A GPU laboratory for coding agents, over MCP. Without a command it serves MCP over stdio.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    toolsets: Annotated[str | None, typer.Option(help="Toolsets to switch on, by commas; `default`, `all`.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Only tools that look.")] = False,
    exclude_tools: Annotated[str | None, typer.Option(help="Tools to leave out, by commas.")] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    """Serve over stdio if no command is given."""
    if version:
        from gpu_mcp_server import __version__

        typer.echo(f"gpu-mcp-server {__version__}")
        raise typer.Exit
    context.obj = {"toolsets": toolsets, "read_only": read_only or None, "exclude_tools": exclude_tools}
    in_process_client.TOOL_OPTIONS.set({name: value for name, value in context.obj.items() if value})
    given = [f"--{name.replace('_', '-')}" for name in in_process_client.TOOL_OPTIONS.get()]
    if given and context.invoked_subcommand not in (None, *OFFERING):
        raise BadRequest(
            f"{' and '.join(given)} say which tools are offered; `{context.invoked_subcommand}` offers and calls none.",
            hint=f"They go before {', '.join(OFFERING)}, or no command.",
        )
    if context.invoked_subcommand is None:
        serve.over_stdio(**context.obj)


@app.command()
def demo(
    host: Annotated[str | None, typer.Option(help="Host to run on; the default one if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Register a problem, judge good, wrong and cheating candidates, show the table."""
    from gpu_mcp_server.cli import demo_run as demonstration

    demonstration.main(host=host, as_json=as_json)


COMMANDS = (
    *(serve.serve, doctor.doctor, status.status, call.call, init.init, selftest.selftest),
    *(
        files.push,
        files.pull,
        jobs.jobs,
        jobs.logs,
        jobs.cancel,
        history.history,
        audit.audit,
        install.install,
        login.login,
        generated_docs.docs,
    ),
)
for command in COMMANDS:
    app.command()(command)
app.command(context_settings={"allow_interspersed_args": False})(call.run)
GROUPS = {
    "backend": backend.app, "config": config.app, "hosts": hosts.app, "knowledge": knowledge.app, "nccl": nccl.app,
    "recipe": recipe.app, "sandbox": sandbox.app, "store": store.app, "token": token.app, "user": user.app,
}  # fmt: skip
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def run() -> None:
    """Run the command line and turn what we foresee into an exit code and two lines at most."""
    try:
        app()
    except GpuMcpError as error:
        sys.exit(fail(str(error), as_json="--json" in sys.argv, code=2).exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
