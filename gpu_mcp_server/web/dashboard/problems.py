"""Problems: their boards, the course of the work, lineage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.attempt import Attempt
from gpu_mcp_server.models.dashboard import Ranking
from gpu_mcp_server.models.history import ProblemHistory
from gpu_mcp_server.models.problem import Problem
from gpu_mcp_server.plots import history_plots
from gpu_mcp_server.services.lab import Lab
from gpu_mcp_server.web.dashboard.text_format import Listing, display_text, listing
from gpu_mcp_server.web.dashboard.whiskers import WhiskerScale, range_of, scale_of

RANKED = 20
RECENT = 30
MAX_POINTS = 2000
"""Of a plot in a browser; the newest."""
REFERENCE_LINES = 400


@dataclass(frozen=True)
class ProblemPage:
    """Content of a problem's page."""

    problem: Problem
    boards: Sequence[Ranking]
    board: Ranking | None
    """The one that is shown."""
    number: int
    """Of the shown one among them."""
    ranking: Sequence[Attempt]
    scale: WhiskerScale | None
    """Of the ranking's speed-ups."""
    recent: Sequence[Attempt]
    left_out: int
    reference: Listing


async def problem_page(lab: Lab, problem_id: str, number: int) -> ProblemPage:
    """Return a problem with one of its boards.

    Raises:
        NotFound: If there is no such problem or board that the visitor may see.
    """
    problem = await lab.store.problems.get(problem_id)
    boards = await lab.status.overview.boards(problem_id)
    board = _board(boards, number, problem_id)
    recent = await lab.store.experience.list("recent", problem_id=problem_id, kind="evaluate", limit=RECENT)
    ranking: Sequence[Attempt] = await lab.status.overview.ranking(board, problem_id, RANKED) if board else []
    return ProblemPage(
        problem=problem,
        boards=boards,
        board=board,
        number=number,
        ranking=ranking,
        scale=scale_of(end for a in ranking for end in (a.speedup, *(range_of(a.evidence, "speedup_range") or ()))),
        recent=recent.attempts,
        left_out=recent.left_out or 0,
        reference=listing(problem.reference, limit=REFERENCE_LINES),
    )


async def course(lab: Lab, problem_id: str, number: int) -> dict[str, Any]:
    """Return the points of the best-so-far plot of one board; with a time axis they are calls a second."""
    found = await history_of(lab, problem_id, number)
    rated = history_plots.rates_of(found)
    history = rated or found
    points = [
        {
            "number": p.number,
            "attempt_id": p.attempt_id,
            "href": f"/attempts/{p.attempt_id}",
            "outcome": p.outcome,
            "speedup": p.speedup,
            "low": p.speedup_low,
            "high": p.speedup_high,
            "best": p.best,
            "best_trust": p.best_trust,
            "trust": p.trust,
            "said": display_text(p.note or p.reason or "", 140),
        }
        for p in history.points[-MAX_POINTS:]
    ]
    left_out = max(0, len(history.points) - MAX_POINTS)
    return {"points": points, "left_out": left_out, "time_axis": history_plots.TIME_AXIS if rated else None}


async def lineage(lab: Lab, problem_id: str, number: int) -> tuple[ProblemHistory, str]:
    """Return the history of one board, and its lineage as SVG."""
    history = await history_of(lab, problem_id, number)
    return history, history_plots.plot_lineage(history, link=lambda attempt_id: f"/attempts/{attempt_id}")


async def history_of(lab: Lab, problem_id: str, number: int) -> ProblemHistory:
    """Return what was evaluated on one board, in order of time."""
    board = _board(await lab.status.overview.boards(problem_id), number, problem_id)
    if board is None:
        return await lab.store.experience.history(problem_id)
    return await lab.store.experience.history(problem_id, board.device, driver=board.driver, board=True)


def _board(boards: Sequence[Ranking], number: int, problem_id: str) -> Ranking | None:
    if not boards and number == 0:
        return None
    if not 0 <= number < len(boards):
        raise NotFound("board", f"{number} of {problem_id}", hint="The problem's page lists those there are.")
    return boards[number]
