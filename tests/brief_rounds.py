"""Few rounds for evaluations that no test times: all jobs of the judge have one turn of the processor."""

from dataclasses import replace

from gpu_mcp_server.services.evaluation import judge_job

EFFORTS = judge_job.EFFORTS
BRIEF = {name: replace(effort, budget_s=effort.budget_s / 8) for name, effort in EFFORTS.items()}


def set_rounds(*, brief: bool) -> None:
    """Let this process ask for few rounds, or for those that users have."""
    judge_job.EFFORTS = BRIEF if brief else EFFORTS
