"""The benchmarks' own promises: what breaks is not passed over."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


async def test_a_part_that_breaks_is_remembered_and_does_not_stop_the_next(capsys: pytest.CaptureFixture[str]):
    module = runpy.run_path(str(BENCHMARKS / "toolchains" / "profiling.py"))

    async def broken() -> None:
        raise ValueError("no such counter")

    async def fine() -> int:
        return 7

    parts = module["Parts"]({})
    await parts.done("first", broken())
    assert await parts.done("second", fine()) == 7
    assert parts.broken == ["first"] and "no such counter" in parts.results["first"]
    assert "first broke" in capsys.readouterr().out


def test_a_broken_part_is_the_exit_status(monkeypatch: pytest.MonkeyPatch):
    module = runpy.run_path(str(BENCHMARKS / "toolchains" / "profiling.py"))

    async def run(into: Path | None) -> list[str]:
        return ["plain"]

    monkeypatch.setitem(module["main"].__globals__, "run", run)
    monkeypatch.setattr("sys.argv", ["profiling.py"])
    with pytest.raises(SystemExit, match="plain"):
        module["main"]()
