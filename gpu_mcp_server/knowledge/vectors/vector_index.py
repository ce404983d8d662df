"""The second channel: vectors of texts and of what they are about, in Chroma. It is imported when it is first used.

Every piece of an entry has a vector, and its name in words with its first sentence has one of its own (of a section:
its title, its first sentence): questions are short, and near to short texts. Beside vectors of pieces alone that raised
R@1 from .51 to .67 on questions about guides, from .59 to .66 on MPI's briefs, from .80 to .85 on HIP's.

Vectors are computed by us and given to Chroma (`embedding_function=None`). Two processes that write to one of its
folders lose rows silently (4,001 counted, 784 to 980 reachable when tried), so a folder is built aside by whoever holds
the lock, renamed, and never written again.
"""

import hashlib
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpu_mcp_server.knowledge.index.index_schema import (
    open_index,
    texts_of_briefs,
    texts_of_descriptions,
    texts_of_pieces,
)
from gpu_mcp_server.knowledge.index.index_store import DATABASE, Storage, translate_disk_full
from gpu_mcp_server.knowledge.vectors.embedding import EXTRA, WIDTH, Embedder, missing_package, model_folder

if TYPE_CHECKING:
    from gpu_mcp_server.knowledge.search.hybrid_search import Dense, Neighbours

COLLECTIONS: dict[str, Callable[[sqlite3.Connection], Iterator[tuple[str, str]]]] = {
    "pieces": texts_of_pieces,
    "briefs": texts_of_briefs,
}
"""What is embedded in Chroma; the ids are ENTRY/NUMBER."""
DESCRIPTIONS = "descriptions.npy"
"""Vectors of the descriptions in their order: a thousand are multiplied sooner than a graph of them is walked."""
BATCH = 16
SAVED = 1024
"""Pieces after which new vectors are kept, so that a build which is ended goes on there."""
ADDED = 5_000
"""Rows a call. Source: chromadb's limit of 5,461 with SQLite's default."""
SEARCHED = 100
"""Of the graph's neighbours that are looked at: fewer than asked for lowers recall."""
CACHE = "vectors-cache.npz"


def vectors_folder(index: Path) -> Path:
    """Return the folder of an index's vectors, whether or not they were made."""
    return index.parent / index.name.replace("index-", "vectors-")


class Vectors:
    """Vectors of one index, loaded in the background when they are first asked for."""

    def __init__(self, index: Path, data_dir: Path) -> None:
        self._folder = vectors_folder(index)
        self._data_dir = data_dir
        self._loaded: tuple[Embedder, list[Any], Any] | None = None
        self._failed = ""
        self._loader: threading.Thread | None = None
        self._unwanted = threading.Event()

    def channel(self) -> "Dense | None":
        """Return the channel when it is ready, `None` before; asking starts to load it."""
        if self._loaded is not None:
            return self.nearest_entries
        if not self._failed and self._loader is None and (package := missing_package()):
            self._failed = f"{package} is not installed: pip install '{EXTRA}'"
        if self._loader is None and not self._failed and self._folder.is_dir() and model_folder(self._data_dir):
            self._loader = threading.Thread(target=self._load, name="vectors", daemon=True)
            self._loader.start()
        return None

    def wait(self, timeout_s: float | None = None) -> "Dense | None":
        """Return the channel, loaded now; `None` if there is none, or it takes longer than the timeout."""
        self.channel()
        if self._loader is not None:
            self._loader.join(timeout_s)
        return self.channel()

    @property
    def is_loading(self) -> bool:
        """Return whether the channel will be there in a moment."""
        return self._loader is not None and self._loader.is_alive()

    def close(self, timeout_s: float = 4.0) -> None:
        """End the loading: a process that ends while native libraries start up is aborted by them."""
        self._unwanted.set()
        if self._loader is not None:
            self._loader.join(timeout_s)

    def missing(self) -> str:
        """Say why meaning is not used, "" if it is."""
        if self._loaded is not None:
            return ""
        if self._failed:
            return f"Words only, not meaning: {self._failed}."
        if model_folder(self._data_dir) is None:
            return "Words only, not meaning: no model (gpu-mcp-server docs model install)."
        return f"Words only, not meaning: its vectors are being {'loaded' if self._folder.is_dir() else 'made'}."

    def nearest_entries(self, query: str, limit: int) -> "Neighbours":
        """Return what is nearest in meaning, best first, of `limit` pieces, of `limit` briefs and of descriptions."""
        from gpu_mcp_server.knowledge.search.hybrid_search import Neighbours

        assert self._loaded is not None
        embedder, collections, descriptions = self._loaded
        vector = embedder.vectors([query])
        found = [each.query(query_embeddings=vector, n_results=limit, include=[]) for each in collections]
        texts, briefs = (list(dict.fromkeys(int(n.split("/")[0]) for n in each["ids"][0])) for each in found)
        cosines = descriptions @ vector[0]
        nearest = (-cosines).argsort()[:limit]
        return Neighbours(texts, briefs, [(int(n) + 1, float(cosines[n])) for n in nearest])

    def _load(self) -> None:
        import numpy as np

        folder = model_folder(self._data_dir)
        if folder is None:
            return
        try:
            embedder = Embedder(folder)
            if self._unwanted.is_set():
                return
            client = _client(self._folder)
            collections = [client.get_collection(name, embedding_function=None) for name in COLLECTIONS]
            for each in collections:
                if self._unwanted.is_set():
                    return
                each.query(query_embeddings=embedder.vectors(["a first query"]), n_results=1, include=[])
            self._loaded = (embedder, collections, np.load(self._folder / DESCRIPTIONS).astype(np.float32))
        except Exception as error:
            self._failed = f"{type(error).__name__}: {str(error)[:160]}"


def _client(folder: Path) -> Any:
    import chromadb
    from chromadb.config import Settings

    return cast("Any", chromadb).PersistentClient(str(folder), Settings(anonymized_telemetry=False))


def build_vectors(storage: Storage, data_dir: Path, said: Callable[[str], None] = lambda _: None) -> str:
    """Make the vectors of the current index, those of texts that were seen before from what was kept.

    Returns:
        What was done, for people.

    Raises:
        DiskFull: If there is no room; search goes on without meaning.
    """
    if package := missing_package():
        return f"no vectors: {package} is not installed: pip install '{EXTRA}'"
    model = model_folder(data_dir)
    if model is None:
        return "no vectors: no model (gpu-mcp-server docs model install)"
    import numpy as np

    with storage.building() as _, translate_disk_full(storage.root):
        index = storage.current()
        if index is None:
            return "no vectors: no index"
        target = vectors_folder(index)
        if target.is_dir():
            return "vectors are there already"
        db = open_index(index / DATABASE)
        try:
            read_all = {**COLLECTIONS, DESCRIPTIONS: texts_of_descriptions}
            texts = {name: dict(read(db)) for name, read in read_all.items()}
        finally:
            db.close()
        all_texts = {f"{name} {number}": text for name, each in texts.items() for number, text in each.items()}
        made = _Cache(storage.root / CACHE).vectors(all_texts, model, said)
        aside = storage.root / f"building-{secrets.token_hex(4)}"
        try:
            client, first = _client(aside), 0
            for name in COLLECTIONS:
                _write(client, name, list(texts[name]), made[first : first + len(texts[name])])
                first += len(texts[name])
            np.save(aside / DESCRIPTIONS, made[first:])
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return f"{len(all_texts)} vectors"


def _write(client: Any, name: str, numbers: Sequence[str], vectors: Any) -> None:
    """Write a collection of vectors."""
    import numpy as np

    collection = client.create_collection(
        name,
        embedding_function=None,
        configuration={"hnsw": {"space": "cosine", "ef_search": SEARCHED, "ef_construction": 100}},
    )
    for start in range(0, len(numbers), ADDED):
        part = slice(start, start + ADDED)
        collection.add(ids=numbers[part], embeddings=np.asarray(vectors[part], np.float32))


class _Cache:
    """Vectors by content, half precision: 0.8 kB a piece."""

    def __init__(self, path: Path) -> None:
        import numpy

        self._np = cast("Any", numpy)
        self._path = path
        self._known: dict[bytes, Any] = {}
        try:
            with self._np.load(path) as kept:
                keys, vectors = kept["keys"], kept["vectors"]
                self._known = {bytes(key): vector for key, vector in zip(keys, vectors, strict=True)}
        except (OSError, ValueError, KeyError, EOFError):
            pass

    def vectors(self, texts: dict[str, str], model: Path, said: Callable[[str], None]) -> Any:
        keys = {number: hashlib.sha256(text.encode()).digest()[:16] for number, text in texts.items()}
        lacking = {key: texts[number] for number, key in keys.items() if key not in self._known}
        if lacking:
            embedder = Embedder(model, arena=True)
            ordered = sorted(lacking.items(), key=lambda item: len(item[1]))
            for start in range(0, len(ordered), BATCH):
                part = ordered[start : start + BATCH]
                found = embedder.vectors([text for _, text in part]).astype(self._np.float16)
                self._known.update(zip((key for key, _ in part), found, strict=True))
                if start % SAVED < BATCH and start:
                    said(f"{start} of {len(ordered)} texts embedded")
                    self._save()
        self._known = {key: self._known[key] for key in keys.values()}
        self._save()
        return self._np.stack([self._known[key] for key in keys.values()]) if keys else self._np.zeros((0, WIDTH))

    def _save(self) -> None:
        aside = self._path.with_name(f"vectors-{secrets.token_hex(4)}.npz")
        keys = self._np.array([list(key) for key in self._known], self._np.uint8).reshape(-1, 16)
        try:
            self._np.savez(aside, keys=keys, vectors=self._np.stack(list(self._known.values())))
            aside.replace(self._path)
        finally:
            aside.unlink(missing_ok=True)
