"""Suites and repetitions as web pages."""

from collections.abc import Sequence

from gpu_mcp_server.models.suite import PlanComparison, RepeatReport, SuiteReport, SuiteRow
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.recipes.reports.html_page import heading, items, page, picture, section, table

HEADS = ("problem", "stopped", "speed-up", "trust", "attempt", "run", "calls", "run time", "USD as reported", "reason")


def page_of(report: SuiteReport | RepeatReport | PlanComparison) -> str:
    """Return a report as one page."""
    if isinstance(report, SuiteReport):
        return suite_page(report)
    return repeat_page(report) if isinstance(report, RepeatReport) else comparison_page(report)


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
        section("Which step makes them differ", items([step.line_text() for step in report.steps])),
        section("Repetitions", _rows(report.rows)),
    ]
    return page(report.name, parts)


def comparison_page(report: PlanComparison) -> str:
    """Return two plans on the same problems as one page."""
    said = [
        f"passed, A: {report.passed_a.text()}", f"passed, B: {report.passed_b.text()}",
        f"passed, B - A: {report.passed.text()}", f"speed-up, B / A: {report.faster.text('.3g')}",
        f"calls of the agent, B - A: {report.calls.text()}", f"tokens, B - A: {report.tokens.text()}",
        f"cost in USD as reported, B - A: {report.cost_usd.text()}",
    ]  # fmt: skip
    parts = [
        heading(report.name, "", "", f"B against A, {len(report.pairs)} pairs"),
        section("Changed", items(report.changed)),
        section("Metrics", items(said)),
        section("A", _rows([pair.a for pair in report.pairs])),
        section("B", _rows([pair.b for pair in report.pairs])),
    ]
    return page(report.name, parts)


def _speeds(rows: Sequence[SuiteRow]) -> str:
    ends = {row.name: row.speedup_range for row in rows if row.speedup_range is not None}
    found = {row.name: row.speedup for row in rows if row.speedup is not None}
    return picture(history_plots.plot_speedups(found, ends))


def _rows(rows: Sequence[SuiteRow]) -> str:
    return table(HEADS, [_cells(row) for row in rows])


def _cells(row: SuiteRow) -> list[str]:
    cost = f"{row.cost_usd:.2f}" if row.cost_usd is not None else "-"
    return [
        row.name, row.stopped or "unfinished", row.speed_text(), row.trust or "-", row.attempt_id or "-", row.run_id,
        str(row.agent_calls), f"{row.wall_s:,.0f} s", cost, row.why,
    ]  # fmt: skip
