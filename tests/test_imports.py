"""Imports: no modules import each other in a circle, and no command imports libraries that it has no use for."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "toolsets" if "toolsets" in path.parts else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, path: Path, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules that one imports: also within functions, for types alone, and relative to itself."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield from [inner] if inner in known else [base] if base in known else []


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other: what is left when ends and beginnings are taken off."""
    left = {name: targets - {name} for name, targets in graph.items()}
    while True:
        wanted = set[str]().union(*left.values())
        gone = {name for name, targets in left.items() if not targets or name not in wanted}
        if not gone:
            return [[name, *sorted(targets)] for name, targets in sorted(left.items())]
        left = {name: targets - gone for name, targets in left.items() if name not in gone}


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"], ["c", "b"]]


def test_no_modules_import_each_other_in_a_circle():
    paths = [*ROOT.glob("gpu_mcp_server/**/*.py"), *ROOT.glob("toolsets/**/*.py")]
    modules = {module_name(path): path for path in paths}
    graph = {name: set(imports_of(name, path, modules)) for name, path in modules.items()}
    assert graph["gpu_mcp_server.judge.owner.owner_process"] > {"gpu_mcp_server.judge.owner.program_owner"}, (
        "imports in functions count"
    )
    assert not circles(graph)


def test_no_folders_import_each_other_in_a_circle():
    """Two folders that need each other are one: of whichever is changed, the other has to be read."""
    modules = {module_name(path): path for path in ROOT.glob("gpu_mcp_server/**/*.py")}
    siblings: dict[str, dict[str, set[str]]] = {}
    for name, path in modules.items():
        for target in imports_of(name, path, modules):
            ours, theirs = name.split("."), target.split(".")
            depth = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
            if depth:
                level = siblings.setdefault(".".join(ours[:depth]), {})
                level.setdefault(ours[depth], set()).add(theirs[depth])
                level.setdefault(theirs[depth], set())
    assert "hosts" in siblings["gpu_mcp_server.services"]["jobs"]
    assert {folder: found for folder, graph in siblings.items() if (found := circles(graph))} == {}


def imported_by(*words: str, home: Path) -> set[str]:
    """Return the modules that a Python imports for what it is given, which ends at the end of its input."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(home), "XDG_CONFIG_HOME": str(home)},
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    ("words", "needed", "spared"),
    [
        (("-m", "gpu_mcp_server", "--version"), "gpu_mcp_server.cli", ("gpu_mcp_server.cli.app", "typer")),
        (
            ("-m", "gpu_mcp_server", "--help"),
            "gpu_mcp_server.cli.recipe",
            ("gpu_mcp_server.models", "gpu_mcp_server.services", "mcp", "pydantic", "structlog", "rich"),
        ),
        (
            ("-m", "gpu_mcp_server"),
            "gpu_mcp_toolsets.evaluate",
            ("gpu_mcp_server.cli.app", "gpu_mcp_server.services.lab", "gpu_mcp_server.web", "numpy", "tree_sitter"),
        ),
        (("-c", "import gpu_mcp_server.services.lab"), "gpu_mcp_server.services.nccl", ("mcp", "typer", "numpy")),
        (
            ("-c", "import sys; sys.path.insert(0, 'gpu_mcp_server'); import hostd.channel.allocation_server"),
            "hostd.prewarm.prewarm_pool",
            ("dataclasses", "inspect", "platform", "hostd.gpus.broker", "hostd.probe.host_probe"),
        ),
        (
            ("-c", "import sys; sys.path.insert(0, 'gpu_mcp_server'); import hostd.__main__; import hostd.gpus.broker"),
            "hostd.gpus.gpu_queue",
            ("hostd.channel", "hostd.jobs", "hostd.prewarm", "hostd.probe"),
        ),
    ],
    ids=["version", "help", "server over stdio", "laboratory", "host side", "broker"],
)
def test_a_start_imports_only_what_it_needs(
    words: tuple[str, ...], needed: str, spared: tuple[str, ...], tmp_path: Path
):
    """Each model and library costs every command that imports it; what few need is imported where they need it."""
    imported = imported_by(*words, home=tmp_path)
    assert needed in imported
    assert {name for name in imported for each in spared if f"{name}.".startswith(f"{each}.")} == set()
