"""`selftest`: the whole path once, small, with real input; then candidates that try to fool the judge."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import cheat_suite, in_process_client
from gpu_mcp_server.cli.output import Json, announce, fail, table
from gpu_mcp_server.errors import BadRequest

Step = tuple[str, str, dict[str, Any], Callable[[dict[str, Any]], bool]]

REFERENCE = "def reference(x):\n    return x * 2 + 1\n"

KERNEL = """\
#include <stdint.h>
int launch(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * 2 + 1;
    return 0;
}
"""

WRONG = KERNEL.replace("i < n", "i < n - 1")

PROBLEM: dict[str, Any] = {
    "name": "selftest-affine",
    "reference": REFERENCE,
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["n"]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": ["n"]}],
    "shapes": [{"n": 4096}],
    "rtol": 1e-6,
    "atol": 1e-6,
}


def steps(host: str | None) -> list[Step]:
    """Return what is tried: a name, a tool, its arguments, and whether its answer is right."""
    at: dict[str, Any] = {"host": host}
    return [
        ("status", "gpu_status", at, lambda d: any(h.get("reachable") for h in d["hosts"])),
        ("sandbox", "run_command", {"command": ["true"], **at}, lambda d: d.get("status") == "ok"),
        (
            "no network",
            "run_command",
            {"command": ["sh", "-c", "test $(wc -l < /proc/net/route) -le 1"], **at},
            lambda d: d.get("status") == "ok",
        ),
        ("compiler", "compile_kernel", {"source": KERNEL, "language": "c", **at}, lambda d: d.get("status") == "ok"),
        ("problem", "register_problem", {**PROBLEM, **at}, lambda d: "problem_id" in d),
    ]


def verdicts(problem_id: str, host: str | None) -> list[Step]:
    """Return the candidates that are judged."""
    at: dict[str, Any] = {"problem_id": problem_id, "language": "c", "device": "cpu", "host": host}
    at["timing"] = {"fresh": True}
    return [
        ("right kernel", "evaluate_kernel", {"source": KERNEL, **at}, lambda d: d.get("verdict") == "correct"),
        ("wrong kernel", "evaluate_kernel", {"source": WRONG, **at}, lambda d: d.get("verdict") == "incorrect"),
    ]


async def _tried(lab: in_process_client.InProcessSession, todo: list[Step], failed: list[str]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, tool, arguments, right in todo:
        answer = await lab.call(tool, arguments, quiet=True)
        data = answer.data
        passed = not answer.failed and right(data)
        if not passed:
            failed.append(f"{name}:\n{answer.text}")
        typer.echo(f"{'ok' if passed else 'FAIL'}  {name}", err=True)
    return data


async def _path(host: str | None) -> list[str]:
    """Try each step; return what failed."""
    failed: list[str] = []
    async with in_process_client.session() as lab:
        problem = await _tried(lab, steps(host), failed)
        if "problem_id" in problem:
            await _tried(lab, verdicts(str(problem["problem_id"]), host), failed)
    return failed


async def _judged(
    chosen: Callable[[bool], list[cheat_suite.CheatCandidate]], host: str | None
) -> tuple[list[cheat_suite.CheatRow], list[str]]:
    """Judge the candidates that fit the host; return their rows, and what was left out."""
    from gpu_mcp_server.settings.server_settings import load_settings

    def print_row(row: cheat_suite.CheatRow) -> None:
        word = "MISSED" if row.was_missed else "ALARM" if row.false_alarm else "ok"
        typer.echo(f"{word:<6}  {row.candidate.id}: {row.verdict} {row.caught_by}".rstrip(), err=True)

    async with cheat_suite.open_suite(load_settings(), host) as court:
        court.tell = print_row
        probe = await court.lab.jobs.runner.probe(court.lab.hosts.choose(host))
        candidates = chosen(bool(probe.gpus))
        cuda = [c for c in candidates if c.device == "cuda" and not probe.gpus]
        python = [c for c in candidates if c.needs and not (probe.judge and probe.judge.torch)]
        left = [f"{len(cuda)} CUDA candidates left out: no GPU on this host"] if cuda else []
        left += [f"{len(python)} Python candidates left out: no torch in the judge's Python"] if python else []
        return await court.judge_all([c for c in candidates if c not in [*cuda, *python]]), left


def _chosen(
    folder: Path | None, device: str | None, only: str | None, everything: bool
) -> Callable[[bool], list[cheat_suite.CheatCandidate]]:
    """Return what picks the candidates once it is known whether there is a GPU."""
    candidates = cheat_suite.candidates_in_folder(folder) if folder else cheat_suite.catalogued_candidates()
    if only is not None:
        candidates = [c for c in candidates if c.id == only]
        if not candidates:
            raise BadRequest(f"No candidate is called {only!r}.", hint="selftest --all shows their ids.")
    elif not folder and not everything and device is None:
        candidates = [c for c in candidates if c.quick]
    if device is not None:
        candidates = [c for c in candidates if c.device == device]
    asked = bool(folder or only or device)
    return lambda gpu: [c for c in candidates if gpu or asked or c.device == "cpu"]


def _matrix(rows: list[cheat_suite.CheatRow]) -> str:
    """Return the rows as text: id, kind, verdict, what stopped it, which part caught it, and what went wrong."""
    words = ["missed" if row.was_missed else "false alarm" if row.false_alarm else "" for row in rows]
    cells = [
        [
            *(row.candidate.id, row.candidate.kind, row.verdict, row.stopped_by, row.caught_by),
            word + (f": {row.reason}" if word else ""),
        ]
        for row, word in zip(rows, words, strict=True)
    ]
    return table(["candidate", "kind", "verdict", "stopped by", "caught by", ""], cells)


def selftest(
    host: Annotated[str | None, typer.Option(help="Host to test; the default one if absent.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every candidate instead of a handful.")] = False,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Folder of cheats of your own (*.c, *.cpp, *.cu for row-wise softmax).", exists=True),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Every candidate for this device alone: cpu or cuda.")] = None,
    only: Annotated[str | None, typer.Option(help="Candidate with this id alone.")] = None,
    as_json: Json = False,
) -> None:
    """Test the whole path with honest and cheating candidates; exit code 1 if a step fails or a cheat passes."""
    if device not in (None, "cpu", "cuda"):
        raise fail(f"There is no device {device!r}: cpu or cuda.", as_json=as_json)
    chosen = _chosen(candidates, device, only, everything)
    where = in_process_client.describe_host(host)
    announce(f"trying each step from a source to a verdict on {where}")
    failed = in_process_client.run(lambda: _path(host)) if not (candidates or device or only) else []
    announce(f"judging candidates that try to fool the judge on {where}")
    rows, left_out = in_process_client.run(lambda: _judged(chosen, host)) if not failed else ([], [])
    missed, alarms = sum(row.was_missed for row in rows), sum(row.false_alarm for row in rows)
    if as_json:
        whole: dict[str, Any] = {"rows": [row.data() for row in rows], "missed": missed, "false_alarms": alarms}
        typer.echo(json.dumps(whole, ensure_ascii=False, indent=2))
    elif not failed:
        typer.echo(_matrix(rows))
        many = sum(row.candidate.kind == "cheat" for row in rows)
        typer.echo(f"{many} cheats, {missed} missed; {len(rows) - many} honest candidates, {alarms} false alarms")
    for line in [*failed, *left_out]:
        typer.echo(line, err=True)
    if failed or missed or alarms:
        raise typer.Exit(1)
