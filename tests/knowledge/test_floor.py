"""Our questions, asked of what is installed here, must be answered as well as they were."""

from pathlib import Path

import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.build import build
from gpu_mcp_server.knowledge.evaluation import read_questions
from gpu_mcp_server.knowledge.measuring import Measured, measure, our_questions
from gpu_mcp_server.knowledge.storage import Storage

ASKED = {
    *("cuda-runtime", "cuda-driver", "cuda-device", "nvrtc", "nccl", "triton", "hip", "mpi-header", "openmpi-man"),
    *("guides", "messages", "cccl", "cooperative-groups"),
}
"""Sources that questions are about; the others would only take time."""
FLOOR = Path(__file__).parent / "floor.toml"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    data_dir = tmp_path_factory.mktemp("data")
    build(Storage(data_dir), only=ASKED)
    return measure(data_dir, dense=False)


def test_no_score_is_below_the_floor(measured: Measured):
    assert measured.below(FLOOR) == []


def test_most_questions_can_be_asked_where_the_tests_run(measured: Measured):
    """Triton's wheel has CUDA's headers, so only some questions about NCCL, MPI and HIP may have to be left out."""
    asked = sum(score.count for kind, score in measured.evaluation.scores.items() if kind != "all")

    assert asked >= 150


def test_a_score_below_a_floor_is_named(measured: Measured, tmp_path: Path):
    (tmp_path / "floor.toml").write_text("[all]\nr5 = 1.01\n[nothing]\nmrr = 0.1\n")

    below = measured.below(tmp_path / "floor.toml")

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
