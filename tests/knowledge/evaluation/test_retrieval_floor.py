"""Our questions, asked of what is installed here, must be answered as well as they were."""

from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.evaluation.retrieval_benchmark import measure, our_questions
from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import read_questions
from gpu_mcp_server.knowledge.index.build import build
from gpu_mcp_server.knowledge.index.index_store import Storage

ASKED = {
    *("cuda-runtime", "cuda-driver", "cuda-device", "nvrtc", "nccl", "triton", "hip", "mpi-header", "openmpi-man"),
    *("guides", "messages", "environment", "builtins", "cccl", "cooperative-groups"),
}
"""Sources that questions are about; the others would only take time."""
FLOOR = Path(__file__).parents[1] / "floor.toml"
EVERYDAY = Path(__file__).parents[3] / "benchmarks" / "knowledge" / "unseen_paraphrases.toml"


def test_no_score_is_below_the_floor_and_one_that_were_would_be_named(tmp_path: Path):
    """Triton's wheel has CUDA's headers, so only some questions about NCCL, MPI and HIP may have to be left out."""
    build(Storage(tmp_path), only=ASKED)
    measured = measure(tmp_path, dense=False)
    everyday = measure(tmp_path, [EVERYDAY], dense=False).evaluation.scores["paraphrase"]
    asked = sum(score.count for kind, score in measured.evaluation.scores.items() if kind != "all")
    (tmp_path / "floor.toml").write_text("[all]\nr5 = 1.01\n[nothing]\nmrr = 0.1\n")
    below = measured.results_below(tmp_path / "floor.toml")

    assert measured.results_below(FLOOR) == []
    assert asked >= 150
    assert everyday.count >= 60 and everyday.figures()["r5"] >= 0.5, "questions in words that no reference has"
    assert below[0].startswith("all r5 is 0.9")
    assert below[1] == "nothing mrr is 0.0, not 0.1"


def test_there_are_at_least_two_hundred_questions_of_all_kinds():
    questions = [question for path in our_questions() for question in read_questions(path)]

    assert len(questions) >= 200
    assert {q.kind for q in questions} >= {"exact", "mangled", "paraphrase", "idiom", "error", "message", "wrong"}
    assert len({q.text for q in questions}) == len(questions)


def test_a_file_without_questions_is_said(tmp_path: Path):
    (tmp_path / "broken.toml").write_text("[[question]]\ntext = 3\n")

    with pytest.raises(BadRequest, match="holds no questions"):
        read_questions(tmp_path / "broken.toml")
