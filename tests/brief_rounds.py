"""Few and short rounds for evaluations that no test times: all jobs of the judge have one turn of the processor."""

from dataclasses import replace

from gpu_mcp_server.services.evaluation import judge_job

EFFORTS, ROUND_MS = judge_job.EFFORTS, judge_job.ROUND_MS
BRIEF = {
    name: replace(effort, budget_s=effort.budget_s / 8, rehearse_s=effort.rehearse_s / 8)
    for name, effort in EFFORTS.items()
}
SHORT_MS = {**ROUND_MS, "cpu": ROUND_MS["cpu"] / 2}
"""On a GPU, stand-ins included, the length of a round decides what hidden work is found."""


def set_rounds(*, brief: bool) -> None:
    """Let this process ask for few and short rounds, or for those that users have."""
    judge_job.EFFORTS = BRIEF if brief else EFFORTS
    judge_job.ROUND_MS = SHORT_MS if brief else ROUND_MS
