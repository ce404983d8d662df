"""Attempts as they are listed: with what was voided lately, torch.compile's times and sources."""

from gpu_mcp_server.errors import NotFound
from gpu_mcp_server.models.attempt import Attempt, AttemptList
from gpu_mcp_server.services.evaluation.baselines import Baselines
from gpu_mcp_server.services.records.attempts import AttemptStore, View
from gpu_mcp_server.services.records.confirmations import Confirmations
from gpu_mcp_server.store.artifacts import Artifacts

SOURCE_CHARACTERS = 20_000
"""Of each source in a list; read_artifact has all of it."""


class AttemptListing:
    """Reads attempts for whoever looks at them."""

    def __init__(
        self, experience: AttemptStore, baselines: Baselines, artifacts: Artifacts, confirmations: Confirmations
    ) -> None:
        self._experience, self._baselines = experience, baselines
        self._artifacts, self._confirmations = artifacts, confirmations

    async def list_attempts(
        self,
        view: View = "best",
        attempt_id: str | None = None,
        *,
        problem_id: str | None = None,
        device: str | None = None,
        limit: int = 10,
        offset: int = 0,
        with_sources: bool = False,
    ) -> AttemptList:
        """Return one attempt with its evidence, or a list as `AttemptStore.list` does.

        Raises:
            BadRequest, NotFound: As there.
        """
        found = await self._experience.describe(
            view, attempt_id, problem_id=problem_id, device=device, limit=limit, offset=offset
        )
        attempts = [await self._baselines.attempt_with_compiled(each) for each in found.attempts]
        if with_sources:
            attempts = [each.model_copy(update={"source": await self._source(each)}) for each in attempts]
        about = problem_id or next((each.problem_id for each in attempts if attempt_id is not None), None)
        # Who looks at one attempt, as a client that waits for it does, leaves the news to the next answer.
        news = await self._confirmations.list_news(about, take=attempt_id is None) if about is not None else []
        return found.model_copy(update={"attempts": attempts, "news": news})

    async def _source(self, attempt: Attempt) -> str | None:
        try:
            data = await self._artifacts.read(attempt.source_artifact_id or "")
        except NotFound:
            return None
        text = data.decode("utf-8", "replace")
        left = len(text) - SOURCE_CHARACTERS
        return text if left <= 0 else f"{text[:SOURCE_CHARACTERS]}\n[{left} characters more]"
