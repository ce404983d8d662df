"""`selftest`: the whole path once, small, with real input."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import session
from gpu_mcp_server.cli.output import Json, emit

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
    return [
        ("right kernel", "evaluate_kernel", {"source": KERNEL, **at}, lambda d: d.get("verdict") == "correct"),
        ("wrong kernel", "evaluate_kernel", {"source": WRONG, **at}, lambda d: d.get("verdict") == "incorrect"),
    ]


async def _tried(lab: session.Session, todo: list[Step], results: list[dict[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, tool, arguments, right in todo:
        answer = await lab.call(tool, arguments, quiet=True)
        data = answer.data
        passed = not answer.failed and right(data)
        results.append({"step": name, "passed": passed, **({} if passed else {"answer": answer.text})})
        typer.echo(f"{'ok' if passed else 'FAIL'}  {name}", err=True)
    return data


def selftest(
    host: Annotated[str | None, typer.Option(help="Host to test; the default one if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Run, compile, register and judge something small; exit code 1 if a step fails."""
    results: list[dict[str, Any]] = []

    async def work() -> None:
        async with session.session() as lab:
            problem = await _tried(lab, steps(host), results)
            if "problem_id" in problem:
                await _tried(lab, verdicts(str(problem["problem_id"]), host), results)

    done: Callable[[], Awaitable[None]] = work
    session.run(done)
    failed = [r for r in results if not r["passed"]]
    text = "\n\n".join(f"{r['step']}:\n{r['answer']}" for r in failed) or f"all {len(results)} steps passed"
    emit({"passed": not failed, "steps": results}, text, as_json=as_json)
    if failed:
        raise typer.Exit(1)
