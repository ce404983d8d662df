"""Descriptions of tasks: they lead to entries, and are no copies of the questions that measure them."""

import re
from pathlib import Path

import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.knowledge.evaluation.retrieval_metrics import read_questions
from gpu_mcp_server.knowledge.readers import task_descriptions
from gpu_mcp_server.knowledge.readers.task_descriptions import read_descriptions
from gpu_mcp_server.knowledge.search.hybrid_search import Neighbours
from gpu_mcp_server.knowledge.search.index_reader import IndexReader

ROOT = Path(__file__).parents[3]
LONGEST = 24
"""Words of a description: a question is not longer."""


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def test_a_question_in_words_that_no_text_has_finds_what_a_description_names(library: IndexReader):
    hits = library.ask("a carton for the attic").hits

    assert [hit.name for hit in hits] == ["boxesMoveAsync", "boxesFree"], "the usual name stands first"
    assert (hits[0].match, hits[0].edition.version) == ("words", "2.1")
    assert hits[0].summary.startswith("Moves bytes"), "the reference is shown, never the description"


def test_a_description_is_found_by_meaning_within_library_version_and_kind(library: IndexReader):
    def dense(_: str, limit: int) -> Neighbours:
        return Neighbours(descriptions=[(1, 0.9)][:limit])

    assert library.ask("cellar", dense=dense).hits[0].match == "meaning"
    newer = library.ask("cellar", dense=dense, library="boxes", version="3.0").hits[0]
    assert (newer.name, newer.edition.version) == ("boxesMoveAsync", "3.0")
    assert library.ask("cellar", dense=dense, library="manual").hits == []
    assert library.ask("cellar", dense=dense, kinds=["error"]).hits == []


def test_one_that_is_hardly_alike_finds_nothing(library: IndexReader):
    def far(_: str, limit: int) -> Neighbours:
        return Neighbours(descriptions=[(1, 0.1)][:limit])

    scores = [hit.name for hit in library.ask("why does a tower fall", dense=far).hits]

    assert scores[0] == "Stacking boxes"


def test_descriptions_are_short_distinct_and_no_question_that_measures_them():
    found = read_descriptions()
    files = [
        *(ROOT / "benchmarks" / "knowledge").glob("unseen_*s.toml"),
        *(ROOT / "knowledge_base/questions").glob("*"),
    ]
    asked = {plain(q.text) for path in files if path.stem != "unseen_names" for q in read_questions(path)}

    assert len(found) > 1_000 and len(asked) > 400
    assert [each for each in found if plain(each.text) in asked] == []
    assert [each for each in found if not each.names or not 1 <= len(each.text.split()) <= LONGEST] == []
    assert len({(each.text, each.names) for each in found}) == len(found)


def test_a_file_that_holds_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "descriptions").mkdir()
    (tmp_path / "descriptions" / "broken.toml").write_text("descriptions = 3\n")
    monkeypatch.setattr(task_descriptions, "content_folder", lambda: tmp_path)

    with pytest.raises(ConfigError, match=r"broken\.toml holds no descriptions"):
        read_descriptions()
