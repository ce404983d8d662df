"""`demo`: what an agent would do, against a server of its own over stdio, and the table that comes of it."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from rich.console import Console
from rich.table import Table

from gpu_mcp_server.errors import GpuMcpError
from gpu_mcp_server.package_files import content_path

CANDIDATES = {
    "naive": "one thread, one pass after the other",
    "vectorized": "vector instructions and threads",
    "wrong_tail": "wrong in the last partial tile",
    "cached_answer": "caches its first answer",
    "late_answer": "says it is done and computes afterwards",
    "no_answer": "returns without computing",
}
SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 512, "cols": 1023}, {"rows": 1024, "cols": 4096}]
GPU_SHAPES = [{"rows": 64, "cols": 1000}, {"rows": 4096, "cols": 1023}, {"rows": 8192, "cols": 8192}]
TENSOR = {"dtype": "float32", "shape": ["rows", "cols"]}


@dataclass
class Demo:
    """One run of the demonstration."""

    client: Client
    console: Console
    host: str | None
    results: dict[str, Any] = field(default_factory=dict[str, Any])

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool as an agent does; an error of ours ends the demonstration."""

        async def told(progress: float, total: float | None, message: str | None) -> None:
            if message and self.console.is_terminal:
                self.console.print(f"    [dim]{message[:100]}[/dim]", highlight=False)
            del progress, total  # the SDK's names; messages say more

        if self.host:
            arguments["host"] = self.host
        result = await self.client.call_tool(tool, arguments, progress_callback=told)
        if result.is_error:
            raise GpuMcpError("".join(getattr(c, "text", "") for c in result.content))
        return result.structured_content or {}

    async def run(self) -> None:
        """Show the host, then every device's candidates, then the history."""
        lab = await self.call("gpu_status")
        host = next(h for h in lab["hosts"] if h["reachable"] or self.host)
        self.results["host"] = host
        if not host["reachable"]:
            raise GpuMcpError(f"Host {host['host']} cannot be used: {host['problem']}.")
        self.console.print(
            f"host [bold]{host['host']}[/bold]: {host['cpu']}, {host['cores']} cores, sandbox {host['level']}"
            + (f" (not full: {host['weaker_because']})" if host.get("weaker_because") else ""),
            highlight=False,
        )
        self.console.print(
            f"compilers: {', '.join(f'{k} {v}' for k, v in host['toolchains'].items()) or 'none'}; "
            f"judge: {host.get('judge') or 'none'}",
            highlight=False,
        )
        if host.get("problem"):
            self.console.print(f"note: {host['problem']}", style="yellow", highlight=False)
        if "cpu" in host["devices"]:
            await self.judge("cpu", ".c", "reference.py", "numpy", SHAPES)
        if "cuda" in host["devices"]:
            torch = "torch" in (host.get("judge") or "")
            await self.judge(
                "cuda",
                ".cu",
                "reference_torch.py" if torch else "reference.py",
                "torch" if torch else "numpy",
                GPU_SHAPES,
            )
        elif "nvcc" in host["toolchains"]:
            await self.compile_only(host["toolchains"]["nvcc"])
        else:
            self.console.print("\nno CUDA device and no nvcc: the CUDA candidates are left out", highlight=False)

    async def judge(
        self, device: str, suffix: str, reference: str, framework: str, shapes: list[dict[str, int]]
    ) -> None:
        """Register the problem, judge each candidate, print the table and the history."""
        problem = await self.call(
            "register_problem",
            name=f"row-wise softmax ({framework})",
            reference=(examples() / reference).read_text(encoding="utf-8"),
            inputs=[{"name": "x", **TENSOR}],
            outputs=[{"name": "y", **TENSOR}],
            shapes=shapes,
            rtol=1e-4,
            atol=1e-6,
        )
        self.console.print(
            f"\n[bold]{device}[/bold]: problem {problem['problem_id']} {problem['name']}, float32, shapes "
            + ", ".join("x".join(str(v) for v in s.values()) for s in shapes)
            + f"; must fail, and did: {', '.join(problem.get('trivial_answers_tried', []))}",
            highlight=False,
        )
        parent: str | None = None
        judged: list[tuple[str, Any]] = []
        for name, what in CANDIDATES.items():
            source = (examples() / f"{name}{suffix}").read_text(encoding="utf-8")
            arguments: dict[str, Any] = {"problem_id": problem["problem_id"], "source": source, "note": what}
            arguments |= {"language": "cuda" if suffix == ".cu" else "c"} | ({"parent": parent} if parent else {})
            verdict = await self.call("evaluate_kernel", **arguments, timing={"fresh": True})
            parent = parent or verdict["attempt_id"]
            judged.append((name, verdict))
            word, seconds = verdict.get("verdict") or verdict["status"], verdict["seconds"].get("total", 0)
            self.console.print(f"  {name}: {word} after {seconds:.1f} s", highlight=False)
        self.results[device] = {"problem": problem, "verdicts": dict(judged)}
        self.console.print(_verdicts(device, judged))
        self.results[device]["history"] = await self.history(problem["problem_id"])

    async def history(self, problem_id: str) -> list[Any]:
        """Print what was recorded, best first, then the failures."""
        self.console.print("\nrecorded, best first:", highlight=False)
        attempts: list[Any] = []
        for view in ("best", "failures"):
            page = await self.client.call_tool("list_attempts", {"problem_id": problem_id, "view": view})
            listed: dict[str, Any] = page.structured_content or {}
            attempts += listed.get("attempts", [])
        for a in attempts:
            speed = f"speed-up {a['speedup']:.3g}" if a.get("speedup") else a.get("verdict") or a["status"]
            self.console.print(f"  {a['attempt_id']}  {speed:<16} {a.get('note') or ''}", highlight=False)
        self.console.print("(in a store of the demonstration's own, which ends with it)", highlight=False)
        return attempts

    async def compile_only(self, version: str) -> None:
        """Compile the CUDA candidates where there is no GPU to run them on."""
        self.console.print(f"\n[bold]CUDA[/bold]: nvcc {version} and no GPU: compiled, not run", highlight=False)
        table = Table("candidate", "compiles", "seconds", "kernel", "registers", "spills B", "shared B", "arch")
        built: dict[str, Any] = {}
        for name in CANDIDATES:
            source = (examples() / f"{name}.cu").read_text(encoding="utf-8")
            result = await self.call("compile_kernel", source=source, language="cuda")
            built[name] = result
            kernels: list[Any] = result.get("resources") or [None]
            for kernel in kernels:
                table.add_row(
                    name,
                    result["status"],
                    f"{result['seconds']:.2f}" if result.get("seconds") else "cached",
                    *(
                        (
                            kernel["kernel"].partition("(")[0],
                            str(kernel["registers_per_thread"]),
                            str(kernel["spill_store_bytes"]),
                            str(kernel["shared_bytes"]),
                            kernel["arch"],
                        )
                        if kernel
                        else ("-", "-", "-", "-", "-")
                    ),
                )
        self.results["cuda_compiled"] = built
        self.console.print(table)


def _verdicts(device: str, judged: list[tuple[str, Any]]) -> Table:
    table = Table(
        title=f"softmax on {device}; time of one call at the largest shape, 95 % interval of the median",
        title_justify="left",
    )
    for heading in ("candidate", "verdict", "why", "time us", "speed-up", "registers", "spills B", "sandbox"):
        table.add_column(heading, overflow="fold")
    colours = {"correct": "green", "incorrect": "yellow", "cheat": "red"}
    for name, v in judged:
        verdict = v.get("verdict") or v["status"]
        timed: list[Any] = [s for s in v.get("shapes", []) if s.get("candidate")]
        time, speed = "-", "-"
        if timed and verdict == "correct":
            last = timed[-1]
            c = last["candidate"]
            time = f"{_us(c['median_us'])} ({_us(c['low_us'])}-{_us(c['high_us'])})"
            if v.get("speedup") and last.get("speedup"):
                speed = f"{v['speedup']:.3g} (largest {last['speedup_low']:.3g}-{last['speedup_high']:.3g})"
        resources: list[Any] = v.get("resources") or []
        registers = ", ".join(str(r["registers_per_thread"]) for r in resources) or "-"
        spills = ", ".join(str(r["spill_store_bytes"]) for r in resources) or "-"
        why = v.get("reason") or "; ".join(filter(None, ["every timed call was checked", v.get("note")]))
        table.add_row(
            name,
            f"[{colours.get(verdict, 'magenta')}]{verdict}[/]",
            why,
            time,
            speed,
            registers,
            spills,
            v.get("level") or "-",
        )
    return table


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def examples() -> Path:
    """Return the folder of the example candidates: of the checkout, or of the installed package."""
    folder = content_path("examples/softmax")
    if folder.is_dir():
        return folder
    raise GpuMcpError("The examples are not installed.", hint="Run the demo from a checkout.")


async def _run(host: str | None, folder: Path, as_json: bool) -> dict[str, Any]:
    console = Console(file=sys.stderr if as_json else sys.stdout, width=None if sys.stdout.isatty() else 160)
    env = {**os.environ, "GPU_MCP_DATA_DIR": str(folder)}
    server = ["-m", "gpu_mcp_server", "--toolsets", "default"]
    failed: GpuMcpError | None = None
    async with Client(StdioServerParameters(command=sys.executable, args=server, env=env)) as client:
        demo = Demo(client, console, host)
        try:
            await demo.run()
        except GpuMcpError as error:  # raised in here it would leave the client's task groups as a group
            failed = error
    if failed is not None:
        raise failed
    return demo.results


def main(*, host: str | None = None, as_json: bool = False) -> None:
    """Run the demonstration; every number in it is measured now, in a store of its own."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-mcp-demo-"))
    folder.chmod(0o711)  # jobs of a root server run under their own uid and must get through
    try:
        results = asyncio.run(_run(host, folder, as_json))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
