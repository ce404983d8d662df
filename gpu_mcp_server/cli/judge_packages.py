"""`--with` of `hosts add` and `hosts set`: packages for the judge's Python on a host."""

from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import announce

With = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="PACKAGES",
        help="Install these packages there (torch,triton), in an environment of the server's that the judge then uses.",
    ),
]


def parsed_packages(given: str | None) -> list[str]:
    """Return the packages of `--with`, none where it was not given.

    Raises:
        BadRequest: If one is no package.
    """
    from gpu_mcp_server.services.hosts.judge_environments import package_names

    if given is None:
        return []
    packages = [one.strip() for one in given.split(",") if one.strip()]
    package_names(packages)
    return packages


def install_packages(host: str, packages: list[str]) -> dict[str, Any]:
    """Install packages on a host of the settings; return the interpreter and the versions, as `hosts` prints them.

    Raises:
        GpuMcpError: If they cannot be installed; it says why.
    """
    from gpu_mcp_server.services.hosts.judge_environments import JudgeEnvironment, make_judge_environment

    async def work() -> JudgeEnvironment:
        async with in_process_client.laboratory() as lab:
            return await make_judge_environment(lab.hosts, host, packages)

    where = in_process_client.describe_host(host)
    announce(f"installing {', '.join(packages)} and NumPy by pip on {where}; torch takes minutes")
    return in_process_client.run(work).model_dump()


def installed_line(found: dict[str, Any]) -> str:
    """Return what was installed, and where, as a line."""
    versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return f"installed {versions}; judge_python = {found['python']}"
