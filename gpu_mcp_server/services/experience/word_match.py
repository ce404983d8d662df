"""Match a question in words with texts: stems, parts of names, and synonyms among kernels."""

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

Names = Sequence[Sequence[str]]
OPERATIONS: Names = (
    ("matmul", "gemm", "matrix product", "matrix multiplication", "matrix multiply", "mm", "bmm", "dot product"),
    ("layernorm", "layer norm", "layer normalization"),
    ("rmsnorm", "rms norm", "root mean square"),
    ("batchnorm", "batch norm", "batch normalization"),
    ("conv", "convolution", "conv1d", "conv2d", "conv3d"),
    ("attention", "sdpa", "flash attention", "scaled dot product"),
    ("scan", "prefix sum", "cumsum", "cumulative sum"),
    ("reduction", "reduce", "sum"),
    ("gemv", "matvec", "matrix vector"),
    ("histogram", "bincount"),
    ("elementwise", "pointwise"),
    ("quantization", "quantize", "dequantize"),
    ("cross entropy", "crossentropy", "nll"),
    ("softmax", "log softmax"),
    ("transpose", "transposition"),
    ("sort", "argsort", "topk", "top k"),
)
"""Names of one operation each."""
FAILURES: Names = (
    ("sigsegv", "segfault", "segmentation fault", "crash", "crashed"),
    ("sigabrt", "abort", "aborted"),
    ("illegal access", "illegal address", "out of bounds", "outside the buffers"),
    ("hang", "hung", "deadlock", "timeout", "timed out", "did not return", "endless loop"),
    ("oom", "out of memory"),
    ("compile error", "compile_failed", "compilation failed", "does not compile"),
    ("wrong answer", "wrong result", "elements are wrong"),
    ("nan", "not a number", "inf"),
    ("linker", "undefined reference", "undefined symbol", "no symbol"),
)
"""Names of one way to fail each."""
_PARTS = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
_WORD = re.compile(r"\w+")
MOST_WORDS = 12


def texts_that_match(question: str, texts: Mapping[str, str], names: Names) -> set[str]:
    """Return the keys of the texts in which each word of a question is, as it stands, by its stem or by another name.

    Args:
        question: Words; an empty one matches nothing.
        texts: What is asked, by key.
        names: Groups of names that mean the same.
    """
    literal = question.lower().split()
    if not literal:
        return set()
    lower = {key: text.lower() for key, text in texts.items()}
    found = {key for key, text in lower.items() if all(word in text for word in literal)}
    query = _query(_split(question), names)
    return found | _by_stems(query, texts) if query else found


def _split(text: str) -> list[str]:
    return _WORD.findall(_PARTS.sub(" ", text).lower())[:MOST_WORDS]


def _query(words: Sequence[str], names: Names) -> str:
    """Return a question in the language of SQLite's full text search: all words, each or another name of it."""
    left, said = f" {' '.join(words)} ", list[str]()
    for group in names:
        split = [" ".join(_split(name)) for name in group]
        used = max((name for name in split if f" {name} " in left), key=len, default="")
        if used:
            left = left.replace(f" {used} ", "  ")
            said.append(f"({' OR '.join(map(_phrase, split))})")
    return " AND ".join([*said, *map(_phrase, left.split())])


def _phrase(words: str) -> str:
    return f'"{words}"'


def _by_stems(query: str, texts: Mapping[str, str]) -> set[str]:
    """Search with the stems of Porter's algorithm, in a table that lives as long as the question.

    Source: https://www.sqlite.org/fts5.html, the porter tokenizer.
    """
    with sqlite3.connect(":memory:") as db:
        db.execute("CREATE VIRTUAL TABLE texts USING fts5(key UNINDEXED, text, tokenize = 'porter unicode61')")
        rows: Iterable[tuple[str, str]] = ((key, f"{text} {_PARTS.sub(' ', text)}") for key, text in texts.items())
        db.executemany("INSERT INTO texts VALUES (?, ?)", rows)
        found = {key for (key,) in db.execute("SELECT key FROM texts WHERE texts MATCH ?", (f"text: ({query})",))}
    db.close()
    return found
