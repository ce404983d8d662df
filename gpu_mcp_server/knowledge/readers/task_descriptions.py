"""Descriptions of tasks in other words than the references have, each with the names that do it."""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.knowledge.readers.sources import content_folder


@dataclass(frozen=True, slots=True)
class TaskDescription:
    """One way to ask for what some functions do."""

    text: str
    names: tuple[str, ...]
    """The usual one first; of several libraries."""


def read_descriptions() -> list[TaskDescription]:
    """Return the descriptions of knowledge_base/descriptions, none where the content is not installed.

    Raises:
        ConfigError: If a file is no table of names and texts.
    """
    return [each for path in _files() for each in _of_file(path)]


def fingerprint() -> str:
    """Return what changes when a description does."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(path.read_bytes())
    return f"descriptions-{digest.hexdigest()[:24]}"


def _files() -> list[Path]:
    folder = content_folder()
    return sorted((folder / "descriptions").glob("*.toml")) if folder else []


def _of_file(path: Path) -> Iterator[TaskDescription]:
    try:
        table = cast("dict[str, str]", tomllib.loads(path.read_text(encoding="utf-8"))["descriptions"])
        for names, texts in table.items():
            for text in texts.split(";"):
                yield TaskDescription(text.strip(), tuple(names.split()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} holds no descriptions: {error!r}.") from error
