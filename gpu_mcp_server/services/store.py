"""The server's store, by kind of content."""

from dataclasses import dataclass
from pathlib import Path

from gpu_mcp_server.services.problems.problem_table import Problems
from gpu_mcp_server.services.records.attempts import AttemptStore
from gpu_mcp_server.services.workspaces.uploads import Uploads
from gpu_mcp_server.services.workspaces.workspace_store import Workspaces
from gpu_mcp_server.store.artifacts import Artifacts
from gpu_mcp_server.store.database import Database
from gpu_mcp_server.store.events import Events
from gpu_mcp_server.team.sharing import SharingService


@dataclass(frozen=True)
class Store:
    """All that outlives the server: its database, and the content in it by kind."""

    db: Database
    artifacts: Artifacts
    workspaces: Workspaces
    uploads: Uploads
    problems: Problems
    experience: AttemptStore
    events: Events
    sharing: SharingService

    @classmethod
    def create(cls, folder: Path, db: Database) -> "Store":
        """Return what an open database keeps, with files in a data folder."""
        artifacts = Artifacts(folder / "artifacts", db)
        workspaces = Workspaces(db, artifacts)
        return cls(
            db, artifacts, workspaces, Uploads(db, artifacts, workspaces),
            Problems(db), AttemptStore(db), Events(db), SharingService(db),
        )  # fmt: skip
