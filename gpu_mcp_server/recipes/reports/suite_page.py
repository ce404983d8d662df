"""Suites and repetitions as web pages."""

from collections.abc import Sequence

from gpu_mcp_server.models.suite import RepeatReport, SuiteReport, SuiteRow
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.recipes.reports.html_page import heading, items, page, picture, section, table

HEADS = ("problem", "stopped", "speed-up", "attempt", "run", "calls", "run time", "USD as reported", "reason")


def suite_page(report: SuiteReport) -> str:
    """Return a suite as one page: metrics with their intervals, speed-ups, every problem."""
    compiled = sum(row.stopped == "compiled" for row in report.rows)
    said = [f"{name}: {rate.text()}" for name, rate in report.fast.items()]
    said += report.left_out()
    said += [f"compiled and not judged, as no device is here: {compiled}"] if compiled else []
    parts = [
        heading(report.suite, "", "", f"{len(report.rows)} of {report.problems} problems are done"),
        section("Metrics", items(said)),
        section("Speed-up over the reference", _speeds(report.rows)),
        section("Problems", _rows(report.rows)),
    ]
    return page(report.suite, parts)


def repeat_page(report: RepeatReport) -> str:
    """Return repetitions of one run as one page."""
    said = [f"passed: {report.passed.text()}", f"reached the target: {report.reached.text()}"]
    if report.difference is not None:
        said.append(f"difference of the sources: {report.difference:.2f} (0 are equal texts)")
    parts = [
        heading(report.name, "", "", f"{len(report.rows)} repetitions"),
        section("Metrics", items(said)),
        section("Speed-up over the reference", _speeds(report.rows)),
        section("Repetitions", _rows(report.rows)),
    ]
    return page(report.name, parts)


def _speeds(rows: Sequence[SuiteRow]) -> str:
    return picture(history_plots.plot_speedups({row.name: row.speedup for row in rows if row.speedup is not None}))


def _rows(rows: Sequence[SuiteRow]) -> str:
    return table(HEADS, [_cells(row) for row in rows])


def _cells(row: SuiteRow) -> list[str]:
    speed = f"{row.speedup:.3g}" if row.speedup is not None else ("correct, not timed" if row.correct else "-")
    cost = f"{row.cost_usd:.2f}" if row.cost_usd is not None else "-"
    return [
        row.name, row.stopped or "unfinished", speed, row.attempt_id or "-", row.run_id,
        str(row.agent_calls), f"{row.wall_s:,.0f} s", cost, row.why,
    ]  # fmt: skip
