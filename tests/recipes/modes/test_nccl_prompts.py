"""Prompts of the agent of mode nccl."""

from pathlib import Path

from gpu_mcp_server.recipes.run.journal import entries
from gpu_mcp_server.services.lab import Lab
from tests.recipes.modes.test_nccl_mode import ran
from tests.recipes.modes.test_nccl_speed import LEFT


async def test_the_first_prompt_shows_reference_code_and_documents_and_no_later_one_does(lab: Lab, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/ring.cuh").write_text("// a ring that somebody wrote before\n")
    (tmp_path / "notes/lsa.md").write_text("ncclGetLsaPointer gives the address at a peer.\n")
    given = {"reference_code": ["notes/ring.cuh"], "documents": ["notes/lsa.md"]}
    state, folder = await ran(lab, tmp_path, LEFT, **given)

    assert state.stopped == "target", state.summary()
    done = {entry["step"]: entry for entry in entries(folder) if entry["event"] == "done"}
    first, second = [
        (await lab.store.artifacts.read(done[step]["prompt_artifact_id"])).decode() for step in ("code-001", "code-002")
    ]
    assert "Reference code:\n\nring.cuh:" in first and "a ring that somebody wrote before" in first
    assert "Documentation:\n\nlsa.md:" in first and "gives the address at a peer" in first
    assert "ring.cuh" not in second and "gives the address at a peer" not in second
