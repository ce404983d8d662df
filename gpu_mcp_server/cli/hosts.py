"""`hosts`: the machines that jobs run on."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.host_arguments import connection_settings, given_settings
from gpu_mcp_server.cli.judge_packages import With, install_packages, installed_line, parsed_packages
from gpu_mcp_server.cli.output import Json, announce, fail, print_result, say, table
from gpu_mcp_server.cli.token import with_team
from gpu_mcp_server.errors import BadRequest, ConfigError, GpuMcpError, HostError
from gpu_mcp_server.settings.config_edit import given_hosts, with_host, without_host, write_private

if TYPE_CHECKING:
    from gpu_mcp_server.services.hosts.host_connections import DrainState

app = typer.Typer(help="Add, list, check and remove the machines that jobs run on.", no_args_is_help=True)


def refuse_elsewhere(command: str) -> None:
    """Refuse what changes settings, or logs in, where commands act on a team's server.

    Raises:
        BadRequest: If they do.
    """
    if address := in_process_client.remote_address():
        raise BadRequest(
            f"The settings of {address} are on its machine: change its hosts there.",
            hint=f"`gpu-mcp-server --local hosts {command}` changes those of this machine.",
        )


def read_config(path: Path) -> str:
    """Return the user's settings file, empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the host in tools.")],
    target: Annotated[
        str | None,
        typer.Argument(
            help="[user@]host[:port], a name from ~/.ssh/config; for docker its image; for slurm the login node."
        ),
    ] = None,
    identity_file: Annotated[Path | None, typer.Option(help="Private key.")] = None,
    known_hosts: Annotated[Path | None, typer.Option(help="Instead of ~/.ssh/known_hosts.")] = None,
    ssh_config: Annotated[Path | None, typer.Option(help="Instead of ~/.ssh/config.")] = None,
    python: Annotated[str | None, typer.Option(help="Python 3.8+ there that runs hostd.")] = None,
    judge_python: Annotated[str | None, typer.Option(help="Python there with NumPy or torch, for judging.")] = None,
    cuda: Annotated[str | None, typer.Option(help="CUDA toolkit's folder there.")] = None,
    state_dir: Annotated[str | None, typer.Option(help="Folder there for jobs and cached files.")] = None,
    check_it: Annotated[bool, typer.Option("--check/--no-check", help="Connect to it before adding it.")] = True,
    kind: Annotated[
        str, typer.Option(help="ssh; openssh for your own ssh, as one-time passwords need; docker; slurm; pbs; local.")
    ] = "ssh",
    control_path: Annotated[str | None, typer.Option(help="Socket of your ssh connection; only for openssh.")] = None,
    more: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of its kind: gpus=4, partition=long."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the host of that name.")] = False,
    with_packages: With = None,
    as_json: Json = False,
) -> None:
    """Add a host to the settings if it answers; --no-check adds it in any case.

    `hosts add box ada@gpu-box --with torch,triton`, `hosts add local-docker my/image:1 --kind docker --set gpus=all`,
    `hosts add cluster ada@login-node --kind slurm --set partition=gpu --set gpus=4`.
    """
    from gpu_mcp_server.settings.server_settings import user_config_file

    refuse_elsewhere("add")
    files = {"identity_file": identity_file, "known_hosts": known_hosts, "ssh_config": ssh_config}
    way: dict[str, Any] = {key: str(path.expanduser().absolute()) for key, path in files.items() if path}
    way |= {"control_path": control_path} if control_path else {}
    options = {"python": python, "judge_python": judge_python, "cuda": cuda, "state_dir": state_dir}
    values = connection_settings(kind, target, way) | {
        key: value for key, value in options.items() if value is not None
    }
    values |= given_settings(more or [])
    path = user_config_file()
    before = read_config(path)
    packages = parsed_packages(with_packages)
    if packages and not check_it:
        raise ConfigError("--with installs on the host, and --no-check does not connect to it.", hint="Leave one out.")
    text = without_host(before, name) if replace and name in given_hosts(before) else before
    _keep_valid(path, before, with_host(text, name, values))
    status = _checked(name, path, before, as_json=as_json) if check_it else None
    kept = status is None or status["reachable"] or _has_next_step(name, status)
    if not kept:
        write_private(path, before)
    elif packages and status is not None and not status["reachable"]:
        status["problem"] = f"{status['problem']} Then `gpu-mcp-server hosts set {name} --with {with_packages}`."
    elif packages:
        values = _install(name, values, packages, path, before, as_json=as_json)
        status = _checked(name, path, before, as_json=as_json)
    _tell_kept(name, values, path, status, kept=kept, as_json=as_json)


def _install(
    name: str, values: dict[str, Any], packages: list[str], path: Path, before: str, *, as_json: bool
) -> dict[str, Any]:
    """Install packages on a host just written, and name their Python; the settings are as before if that fails."""
    text = read_config(path)
    try:
        found = install_packages(name, packages)
        values = values | {"judge_python": found["python"]}
        _keep_valid(path, text, with_host(without_host(text, name), name, values))
    except BaseException as error:
        write_private(path, before)
        if isinstance(error, GpuMcpError):
            error.hint += " The settings are as they were; the same command tries it again."
        raise
    if not as_json:
        say(installed_line(found))
    return values


def _keep_valid(path: Path, before: str, text: str) -> None:
    """Write the settings, or leave them as they were if they are refused."""
    from gpu_mcp_server.settings.server_settings import load_settings

    write_private(path, text)
    try:
        load_settings()
    except ConfigError as error:
        write_private(path, before)
        said = str(error.args[0])
        hint = "The settings stay as they were."
        hint += " A list is written as JSON: 'roots=[\"/opt/tools\"]'." if "valid list" in said else ""
        raise ConfigError(said, hint=hint) from error


def _checked(name: str, path: Path, before: str, *, as_json: bool) -> dict[str, Any]:
    """Return how a host just written stands; the settings are as before if that cannot be told."""
    try:
        return _status(name, as_json=as_json) or {"host": name, "reachable": False}
    except BaseException:
        write_private(path, before)
        raise


def _has_next_step(name: str, status: dict[str, Any]) -> bool:
    """Return whether what is missing is a person's word, by a command that needs the host in the settings."""
    return re.search(rf"hosts (check|login) {re.escape(name)}\b", str(status.get("problem"))) is not None


def _tell_kept(
    name: str, values: dict[str, Any], path: Path, status: dict[str, Any] | None, *, kept: bool, as_json: bool
) -> None:
    said = f"host {name} is in {path}" if kept else f"host {name} was not saved; --no-check saves it without a check"
    if status is not None:
        said += "\n" + _line(status)
    told = {"host": name, "settings": values, "config_file": str(path), "status": status, "kept": kept}
    print_result(told, said, as_json=as_json)
    if status is not None and not status.get("reachable"):
        raise typer.Exit(1)


@app.command("set")
def set_values(
    name: Annotated[str, typer.Argument(help="Host.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="KEY= takes the setting out.")
    ] = None,
    with_packages: With = None,
    as_json: Json = False,
) -> None:
    """Change settings of a host: `hosts set box port=2222`, `hosts set box --with torch,triton`."""
    from gpu_mcp_server.settings.server_settings import user_config_file

    refuse_elsewhere("set")
    path = user_config_file()
    before = read_config(path)
    known = given_hosts(before)
    if name not in known and name != "local":
        raise ConfigError(f"There is no host {name!r} in {path}.", hint="`gpu-mcp-server hosts list` shows all.")
    packages = parsed_packages(with_packages)
    if not changes and not packages:
        raise ConfigError("Nothing to change.", hint="Say KEY=VALUE, or --with PACKAGES.")
    changes = changes or []
    taken_out = {one.removesuffix("=") for one in changes if one.endswith("=")}
    given = given_settings([one for one in changes if not one.endswith("=")])
    values = {"kind": "local"} | known.get(name, {}) | given
    values = {key: value for key, value in values.items() if key not in taken_out}
    text = without_host(before, name) if name in known else before
    _keep_valid(path, before, with_host(text, name, values))
    if packages:
        values = _install(name, values, packages, path, before, as_json=as_json)
    told = {"host": name, "settings": values, "config_file": str(path)}
    said = f"host {name}: " + ", ".join(f"{key} = {value}" for key, value in values.items())
    if "judge_python" in given:
        told["judge"] = _judge(name, as_json=as_json)
        said += f"\n{told['judge']}"
    print_result(told, said, as_json=as_json)


def _judge(name: str, *, as_json: bool) -> str:
    """Say which Python judges on a host, and why not the one in its settings."""
    status = _status(name, as_json=as_json) or {"host": name}
    if not status.get("reachable"):
        return f"judge_python was not checked: {_line(status)}"
    return f"judge: {status.get('judge') or 'no Python with NumPy'}"


@app.command("list")
def list_hosts(as_json: Json = False) -> None:
    """List the hosts in the settings, or those of the team's server that you are logged in to."""
    if in_process_client.remote_address():
        listed = in_process_client.answer_of("gpu_status", {}, as_json=as_json).data.get("hosts", [])
        rows = [[h["host"], str(h.get("kind", "-")), "-"] for h in listed]
        print_result(
            {"hosts": {h["host"]: h for h in listed}}, table(["HOST", "KIND", "TARGET"], rows), as_json=as_json
        )
        return
    from gpu_mcp_server.settings.server_settings import load_settings

    settings = load_settings()
    hosts = {name: host.model_dump(mode="json", exclude_none=True) for name, host in settings.hosts.items()}
    rows = [
        [
            name,
            str(h["kind"]),
            h.get("image") or "@".join(filter(None, map((h.get("login") or h).get, ("user", "host")))) or "-",
        ]
        for name, h in hosts.items()
    ]
    print_result({"hosts": hosts}, table(["HOST", "KIND", "TARGET"], rows) if rows else "no hosts", as_json=as_json)


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    accept_key: Annotated[
        str | None,
        typer.Option(metavar="FINGERPRINT", help="Write the host's key into known_hosts if this is its fingerprint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Connect to the hosts and say what they offer; exit code 1 if one does not answer."""
    if accept_key is not None and name is None:
        raise fail("--accept-key needs the name of the host.", as_json=as_json, code=2)
    key = _key(name, accept_key) if name is not None else None
    if key is not None and not as_json:
        say(_key_line(key))
    answer = in_process_client.answer_of("gpu_status", {"host": name}, as_json=as_json)
    hosts: list[dict[str, Any]] = answer.data.get("hosts", [])
    data = answer.data if key is None else {**answer.data, "key": key}
    print_result(data, "\n".join(_line(host) for host in hosts), as_json=as_json)
    if not all(host.get("reachable") for host in hosts):
        raise typer.Exit(1)


@app.command()
def login(name: Annotated[str, typer.Argument(help="Host of kind openssh.")], as_json: Json = False) -> None:
    """Log in once, with password or one-time code: the server's sessions then go over this connection."""
    import subprocess

    from gpu_mcp_server.backends.openssh import OpenSshBackend
    from gpu_mcp_server.settings.host_settings import OpenSshHost
    from gpu_mcp_server.settings.server_settings import load_settings

    refuse_elsewhere("login")
    host = load_settings().hosts.get(name)
    if not isinstance(host, OpenSshHost):
        raise BadRequest(
            f"{name!r} is no host of kind openssh in the settings.", hint="Hosts of other kinds need no login."
        )
    code = subprocess.run(OpenSshBackend(name, host).login_words(), check=False).returncode  # noqa: S603
    print_result({"host": name, "exit_code": code}, f"ssh ended with {code}", as_json=as_json)
    raise typer.Exit(code)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Host to take out.")], as_json: Json = False) -> None:
    """Take a host out of the settings; nothing on the host is touched."""
    from gpu_mcp_server.settings.server_settings import user_config_file

    refuse_elsewhere("remove")
    path = user_config_file()
    write_private(path, without_host(read_config(path), name))
    print_result({"removed": name, "config_file": str(path)}, f"host {name} is no longer in {path}", as_json=as_json)


@app.command()
def drain(
    name: Annotated[str, typer.Argument(help="Host.")],
    why: Annotated[str, typer.Option(help="Reason to show to users of the host.")] = "",
    as_json: Json = False,
) -> None:
    """Begin nothing new on a host: running jobs go on, waiting ones keep their places until `resume`."""
    from gpu_mcp_server.services.hosts import host_connections

    async def work() -> host_connections.DrainState:
        async with in_process_client.laboratory() as lab:
            announce(f"asking {in_process_client.describe_host(name)} to take nothing new")
            return await host_connections.drain(lab.hosts, name, why, lab.jobs.pool.share().user)

    if in_process_client.remote_address():
        _drained(with_team(lambda team: team.hosts.drain(name, why)), as_json=as_json)
    else:
        _drained(in_process_client.run(work), as_json=as_json)


@app.command()
def resume(name: Annotated[str, typer.Argument(help="Host.")], as_json: Json = False) -> None:
    """Let new jobs in again, and serve waiting ones."""
    from gpu_mcp_server.services.hosts import host_connections

    async def work() -> host_connections.DrainState:
        async with in_process_client.laboratory() as lab:
            announce(f"asking {in_process_client.describe_host(name)} to take jobs again")
            return await host_connections.resume(lab.hosts, name)

    there = in_process_client.remote_address() is not None
    found = with_team(lambda team: team.hosts.resume(name)) if there else in_process_client.run(work)
    _drained(found, as_json=as_json)
    if found.words:
        raise typer.Exit(1)


def _drained(found: "DrainState", *, as_json: bool) -> None:
    whose = "" if found.for_all or not found.words else " (for the jobs of this login there; root drains for all)"
    text = f"{found.host}: {found.words or 'takes jobs'}{whose}"
    print_result({"host": found.host, "drained": found.words or None, "for_all": found.for_all}, text, as_json=as_json)


def _status(name: str, *, as_json: bool) -> dict[str, Any] | None:
    answer = in_process_client.answer_of("gpu_status", {"host": name}, as_json=as_json)
    return next(iter(answer.data.get("hosts", [])), None)


def _key(name: str, accepted: str | None) -> dict[str, Any] | None:
    """Return what is known of the key of an SSH host, and accept it if `accepted` is its fingerprint.

    Raises:
        BadRequest: If the host shows another key, or is not reached by SSH.
        HostKeyUnknown: If known_hosts has another key of the host.
    """
    from gpu_mcp_server.settings.host_settings import OpenSshHost, SshHost
    from gpu_mcp_server.settings.server_settings import load_settings

    host = load_settings().hosts.get(name)
    if not isinstance(host, SshHost | OpenSshHost):
        if accepted is not None:
            raise BadRequest(f"{name!r} is no SSH host in the settings.", hint="`gpu-mcp-server hosts list` shows all.")
        return None
    announce(f"asking {in_process_client.describe_host(name)} for its key")
    from gpu_mcp_server.backends.host_keys import accept
    from gpu_mcp_server.backends.ssh import SshBackend

    try:
        shown = in_process_client.run(SshBackend(name, host).shown_key)
    except HostError:
        if accepted is not None:
            raise
        return None
    state = shown.state
    if accepted is not None:
        state = "accepted" if accept(name, shown, accepted) else state
    return {
        "state": state,
        "kind": shown.kind,
        "fingerprint": shown.fingerprint,
        "known_as": shown.pattern,
        "known_hosts": str(shown.file),
    }


def _key_line(key: dict[str, Any]) -> str:
    states = {
        "known": "known",
        "new": "not accepted yet",
        "changed": "NOT THE ONE IN known_hosts",
        "revoked": "REVOKED in known_hosts",
        "accepted": f"now in {key['known_hosts']}",
    }
    return f"{key['known_as']} shows {key['kind']} {key['fingerprint']}: {states[key['state']]}"


def _line(host: dict[str, Any]) -> str:
    if not host.get("reachable"):
        return f"{host['host']}: does not answer: {host.get('problem', 'no reason given')}"
    why = host.get("why_no_gpu")
    gpus = ", ".join(gpu["name"] for gpu in host.get("gpus", [])) or "no GPU" + (f" ({why})" if why else "")
    devices = ", ".join(host.get("devices", [])) or "nothing"
    lines = [f"{host['host']}: answers; {gpus}; sandbox {host.get('level')}; judges {devices}"]
    return "\n".join([*lines, *(f"  {said}" for said in (host.get("problem"), host.get("drained")) if said)])
