"""`history`: what was tried, as a list, a table over time, pictures and files."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, print_result, shorten_line, table, terminal_width
from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.text_safety import INDENT, escape_controls
from gpu_mcp_server.time_format import format_elapsed, format_time, format_time_range

if TYPE_CHECKING:
    from gpu_mcp_server.models.history import ExportedBranch, HistoryPoint, ProblemHistory

FORMULA = ("=", "+", "-", "@", "\t")


def history(
    problem_id: Annotated[str | None, typer.Argument(help="Only attempts at this problem.")] = None,
    view: Annotated[str | None, typer.Option(help="best, recent, ancestors or failures; absent: over time.")] = None,
    attempt_id: Annotated[str | None, typer.Option(help="Attempt whose ancestors to show.")] = None,
    limit: Annotated[int, typer.Option(help="Attempts to show.")] = 10,
    offset: Annotated[int, typer.Option(help="Attempts of a view to skip.")] = 0,
    device: Annotated[str | None, typer.Option(help="Device; else the one with most attempts.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the best so far over attempts into FILE.svg.")] = None,
    lineage: Annotated[Path | None, typer.Option(help="Plot the lineage into FILE.svg.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write all rows into FILE.csv or FILE.json.")] = None,
    export_branch: Annotated[
        str | None,
        typer.Option(
            help="Git branch to make: the best attempt (or --attempt-id), its ancestors as commits before it."
        ),
    ] = None,
    repository: Annotated[
        Path | None, typer.Option(help="Your repository for --export-branch; else candidates.git of the data folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the latest attempts, or the history of one problem with plots."""
    if export_branch is not None:
        if problem_id is None:
            raise BadRequest("--export-branch needs a problem_id.", hint="`history PROBLEM_ID --export-branch NAME`.")
        _exported(problem_id, export_branch, attempt_id, repository, as_json=as_json)
        return
    files = [path for path in (plot, lineage, export) if path is not None]
    if problem_id is None and (files or device):
        raise BadRequest("Pictures and exports need a problem_id.", hint="`history PROBLEM_ID --plot F.svg`.")
    if problem_id is None or view is not None or attempt_id is not None:
        if files:
            raise BadRequest("A view has no pictures.", hint="Leave out --view and --attempt-id.")
        arguments = {
            "problem_id": problem_id, "view": view or "recent", "attempt_id": attempt_id,
            "limit": limit, "offset": offset,
        }  # fmt: skip
        answer = in_process_client.answer_of("list_attempts", arguments, as_json=as_json)
        print_result(answer.data, answer.text, as_json=as_json)
        return

    async def work() -> "ProblemHistory":
        from gpu_mcp_server.models.history import ProblemHistory

        if address := in_process_client.remote_address():
            async with in_process_client.remote_session(address) as there:
                return ProblemHistory.model_validate(await there.server.history(str(problem_id), device))
        async with in_process_client.laboratory() as lab:
            await lab.commands.refresh_running_jobs()
            return await lab.store.experience.history(problem_id, device)

    announce("reading what was tried")
    found = in_process_client.run(work)
    written = _written(found, plot, lineage, export)
    shown = found.points[-limit:]
    hidden = len(found.points) - len(shown)
    more = [f"({hidden} earlier attempts are not shown; raise --limit)"] if hidden else []
    text = "\n".join([found.summary(), *history_table(shown), *more, *(f"written: {path}" for path in written)])
    print_result(found.model_dump(mode="json") | {"written": written}, text, as_json=as_json)


def _exported(problem_id: str, branch: str, attempt_id: str | None, into: Path | None, *, as_json: bool) -> None:
    if address := in_process_client.remote_address():
        raise BadRequest(
            f"--export-branch cannot read the attempts of {address}.", hint="--local exports attempts of this machine."
        )

    async def work() -> "ExportedBranch":
        from gpu_mcp_server.services.experience.candidate_repository import CandidateRepository

        async with in_process_client.laboratory() as lab:
            await lab.commands.refresh_running_jobs()
            repository = CandidateRepository(
                lab.settings.data_dir / "candidates.git", lab.store.experience, lab.store.artifacts
            )
            return await repository.export(problem_id, branch, attempt_id, into)

    announce("writing a commit for each attempt")
    exported = in_process_client.run(work)
    print_result(exported.model_dump(mode="json"), exported.summary(), as_json=as_json)


def history_table(points: list["HistoryPoint"]) -> list[str]:
    """Return a line a point, and under it what its author or the judge said, cut to one line; last, what TIME is of."""
    if not points:
        return []
    now = datetime.now(UTC)
    rows = [
        [
            str(p.number), p.attempt_id, p.outcome,
            format_time(p.median_us / 1e6) if p.median_us is not None else "-",
            f"{p.speedup:.3g}" if p.speedup else "-",
            _best(p), p.user or "-",
            format_elapsed((now - datetime.fromisoformat(p.created_at)).total_seconds()),
        ]
        for p in points
    ]  # fmt: skip
    heading, *lines = table(["#", "ATTEMPT", "OUTCOME", "TIME", "SPEED-UP", "BEST", "USER", "AGE"], rows).splitlines()
    under = [shorten_line(_said(p), terminal_width() - len(INDENT)) for p in points]
    told = [[line, f"{INDENT}{said}"] if said else [line] for line, said in zip(lines, under, strict=True)]
    shapes = list(dict.fromkeys(p.shape for p in points if p.shape and p.median_us is not None))
    of = [f"TIME: of one call at {' or '.join(shapes)}; SPEED-UP: over all shapes"] if shapes else []
    of += ["BEST with ?: not confirmed"] if any(_best(p).endswith("?") for p in points) else []
    return [heading, *(line for both in told for line in both), *of]


def _best(point: "HistoryPoint") -> str:
    """Return the best until a point, with a question mark where it is not confirmed."""
    best = f"{point.best:.3g}" if point.best else format_time(point.best_us / 1e6) if point.best_us else "-"
    return best if best == "-" or point.best_trust == "confirmed" else f"{best}?"


def _said(point: "HistoryPoint") -> str:
    """Return the interval, trust and source's id of what has a time, and what its author or the judge said."""
    ends = f"{point.speedup_low:.3g}-{point.speedup_high:.3g}" if point.speedup_low and point.speedup_high else ""
    if point.by_time and point.time_range_us:
        ends = format_time_range(*(end / 1e6 for end in point.time_range_us))
    source = f"source {point.source_artifact_id}" if point.trust and point.source_artifact_id else ""
    told = " ".join(filter(None, [ends, (point.trust or "").partition(":")[0]]))
    return "; ".join(filter(None, [told, source, point.note or point.reason]))


def _written(found: "ProblemHistory", plot: Path | None, lineage: Path | None, export: Path | None) -> list[str]:
    from gpu_mcp_server.plots import history_plots

    texts = {
        plot: history_plots.plot_history(found) if plot else "",
        lineage: history_plots.plot_lineage(found) if lineage else "",
    }
    if export is not None:
        if export.suffix not in (".csv", ".json"):
            raise BadRequest(f"{export} is neither .csv nor .json.", hint="The suffix says the format.")
        texts[export] = _csv(found) if export.suffix == ".csv" else _json(found)
    for path, text in texts.items():
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise BadRequest(f"{path} cannot be written: {error.strerror}.", hint="Name another file.") from error
    return [str(path) for path in texts if path is not None]


def _json(found: "ProblemHistory") -> str:
    """Return all of it in ASCII, so that no character steers who looks at the file."""
    return json.dumps(found.model_dump(mode="json"), indent=2) + "\n"


def _csv(found: "ProblemHistory") -> str:
    """Return rows whose texts steer neither a terminal nor a spreadsheet.

    Source: OWASP, CSV Injection: a cell that begins with one of FORMULA is computed, one that begins with ' is text.
    """
    from gpu_mcp_server.models.history import HistoryPoint

    text = io.StringIO()
    names = list(HistoryPoint.model_fields)
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    for point in found.points:
        writer.writerow({name: _cell(value) for name, value in point.model_dump(mode="json").items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    said = escape_controls(value)
    return f"'{said}" if said.startswith(FORMULA) else said
