"""The command tree."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gpu_mcp_server.cli import (
    audit,
    backend,
    call,
    client_config,
    config,
    connect,
    docs,
    doctor,
    files,
    history,
    hosts,
    implementations,
    in_process_client,
    init,
    jobs,
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
from gpu_mcp_server.cli.output import Json, fail, note
from gpu_mcp_server.errors import BadRequest, GpuMcpError

OFFERING = ("serve", "call", "status", "history", "run", "push", "logs", "cancel", "implementations")
"""Commands that offer tools, or call one: those that options before the command are for."""
REMOTE = (
    "call", "status", "history", "run", "push", "pull", "jobs", "logs", "cancel", "artifact", "token", "user", "hosts",
    "whoami", "recipe",
)  # fmt: skip
"""Commands that act on the team's server after `login`, unless --local says otherwise; all others on this machine."""

STARTS_AGAIN = "The same command starts again from the beginning."
AFTER_INTERRUPT = {
    "compare": "The kernels with a result above are compared, and every judgement is kept: `gpu-mcp-server history`. "
    "The same command judges all of them again; a BASE nearer to HEAD leaves fewer kernels.",
    "recipe": "Finished steps are kept. A series (repeat, compare, suite) goes on by the same command; "
    "`gpu-mcp-server recipe list` names the runs.",
    "nccl": "The files that you gave are as they were. `nccl run` keeps finished steps: the same command goes on.",
    "selftest": f"Nothing failed by that. {STARTS_AGAIN}",
    "demo": f"Verdicts until then are kept: `gpu-mcp-server history`. {STARTS_AGAIN}",
    "run": "The program was ended, too; its workspace is kept. With --detach a program goes on alone.",
    "call": "The call's job was ended, too; what had its verdict is kept: `gpu-mcp-server history`.",
    "logs": "The job goes on: the same command follows it again.",
    "jobs": "", "status": "", "serve": "", "connect": "",
}  # fmt: skip
"""What Ctrl-C leaves, and how to go on, by command; of those with no sentence it is the usual end."""


class CommandPanels(TyperGroup):
    """Shows commands in groups, each with the whole first line of what it does, and says what Ctrl-C leaves."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and SIGTERM end it with a sentence and exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            command = str(ctx.invoked_subcommand or "serve")
            if left := str(error) or AFTER_INTERRUPT.get(command, STARTS_AGAIN):
                begin = "\n" if sys.stderr.isatty() else ""  # the terminal wrote ^C
                note(f"{begin}interrupted: {left}")
            raise typer.Exit(130) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section a group."""
        for panel in PANELS:
            members = {name: c for name, c in self.commands.items() if getattr(c, "rich_help_panel", None) == panel}
            with formatter.section(panel):
                formatter.write_dl([(name, one.get_short_help_str(limit=200)) for name, one in members.items()])


app = typer.Typer(
    cls=CommandPanels,
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
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only tools that change nothing and start nothing.")
    ] = False,
    exclude_tools: Annotated[str | None, typer.Option(help="Tools to leave out, by commas.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Use this machine's store, even when logged in to a team's server.")
    ] = False,
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
    in_process_client.LOCAL_ONLY.set(local or context.invoked_subcommand not in REMOTE)
    if given and in_process_client.remote_address():
        raise BadRequest(
            f"{' and '.join(given)} say what this machine offers, and the command acts on "
            f"{in_process_client.remote_address()}.",
            hint="Leave them out, or say --local too.",
        )
    if context.invoked_subcommand is None:
        serve.over_stdio(**context.obj)


def demo(
    host: Annotated[str | None, typer.Option(help="Host to run on; the default one if absent.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Whole reasons, intervals, registers.")] = False,
    as_json: Json = False,
) -> None:
    """Register a problem, judge good, wrong and cheating candidates, show the table."""
    typer.echo("Six softmax kernels are judged: right, wrong and cheating ones.", err=as_json)
    from gpu_mcp_server.cli import demo_run as demonstration  # it takes seconds to import

    demonstration.main(host=host, verbose=verbose, as_json=as_json)


Command = Callable[..., None]
PANELS: dict[str, tuple[Command | tuple[str, typer.Typer], ...]] = {
    "Start": (init.init, client_config.client_config, doctor.doctor, demo, selftest.selftest, serve.serve),
    "Work": (
        *(status.status, files.push, files.pull, ("artifact", files.artifact_app), jobs.jobs, jobs.logs, jobs.cancel),
        *(history.history, implementations.implementations, implementations.compare, audit.audit, call.call),
        *(("docs", docs.app), ("recipe", recipe.app), ("nccl", nccl.app)),
    ),
    "Hosts and settings": (
        ("hosts", hosts.app),
        ("backend", backend.app),
        ("sandbox", sandbox.app),
        ("config", config.app),
    ),
    "Store and team": (
        ("store", store.app),
        ("user", user.app),
        ("token", token.app),
        login.login,
        login.logout,
        login.whoami,
        connect.connect,
    ),
}
"""Commands as `--help` groups them."""
for panel, members in PANELS.items():
    if panel == "Work":  # what follows is the program's, options and all
        app.command(context_settings={"allow_interspersed_args": False}, rich_help_panel=panel)(call.run)
    for member in members:
        if callable(member):
            app.command(rich_help_panel=panel)(member)
        else:
            app.add_typer(member[1], name=member[0], rich_help_panel=panel)


def run() -> None:
    """Run the command line and turn what we foresee into an exit code and two lines at most."""
    try:
        app()
    except GpuMcpError as error:
        sys.exit(fail(str(error), as_json="--json" in sys.argv, code=2).exit_code)
