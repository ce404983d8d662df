"""Programs' answers: remembered as long as their files are the same, trusted only from a file of one's own."""

from pathlib import Path

import pytest

from gpu_mcp_server.hostd.probe import version_cache
from gpu_mcp_server.hostd.probe.version_cache import VersionCache


class Compiler:
    """A program that counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.path, self.kept = folder / "compiler", str(folder / "cache" / "answers.json")
        self.asked = folder / "asked"
        self.write("echo version 1.0")

    def write(self, text: str) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text(f"#!/bin/sh\necho >>{self.asked}\n{text}\n")
        aside.chmod(0o755)
        aside.rename(self.path)

    def say(self, *words: str) -> str:
        """Ask as a new hostd does."""
        known = VersionCache(self.kept)
        text = known.output_of([str(self.path), *words])
        known.keep()
        return text

    def times(self) -> int:
        return len(self.asked.read_text())


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def test_an_answer_is_remembered_as_long_as_its_files_are_the_same(compiler: Compiler, tmp_path: Path):
    library = tmp_path / "library.so"
    library.write_text("old")
    assert [compiler.say(str(library)) for _ in range(3)] == ["version 1.0\n"] * 3
    assert compiler.times() == 1

    library.write_text("new and longer")
    compiler.say(str(library))
    assert compiler.times() == 2, "a file that is asked about has changed"

    compiler.write("echo version 2.0")
    assert compiler.say(str(library)) == "version 2.0\n"


def test_other_words_another_input_and_another_path_are_other_questions(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
):
    compiler.say("--version")
    compiler.say("--help")
    monkeypatch.setenv("PATH", "/bin:/usr/bin:/nowhere")
    compiler.say("--version")

    assert compiler.times() == 3


def test_an_answer_holds_for_an_hour_and_no_longer(compiler: Compiler, monkeypatch: pytest.MonkeyPatch):
    compiler.say()
    monkeypatch.setattr(version_cache, "HOLDS_S", 0)
    compiler.say()

    assert compiler.times() == 2


def test_what_fails_is_an_answer_only_where_failures_are_told(compiler: Compiler):
    compiler.write("echo valid targets: a b; exit 1")
    for _ in range(2):
        assert compiler.say() == "valid targets: a b\n"
        assert VersionCache(compiler.kept).successful_output([str(compiler.path)]) == ""
    assert compiler.times() == 1
    assert VersionCache(compiler.kept).output_of(["/nowhere/at/all"]) == ""


@pytest.mark.parametrize(
    "harm", ["group may write", "link", "no json", "no table", "rows of another form", "too large"]
)
def test_a_file_that_is_not_ours_or_damaged_counts_for_nothing(compiler: Compiler, harm: str, tmp_path: Path):
    compiler.say()
    kept = Path(compiler.kept)
    if harm == "group may write":
        kept.chmod(0o660)
    elif harm == "link":
        kept.rename(tmp_path / "elsewhere")
        kept.symlink_to(tmp_path / "elsewhere")
    elif harm == "too large":
        kept.write_text(kept.read_text() + " " * version_cache.MOST_BYTES)
    else:
        kept.write_text({"no json": "{", "no table": "[1]", "rows of another form": '{"a": {"said": 1}}'}[harm])

    assert compiler.say() == "version 1.0\n"
    assert compiler.times() == 2


def test_where_nothing_can_be_written_the_program_is_asked_each_time(compiler: Compiler, tmp_path: Path):
    (tmp_path / "cache").write_text("a file, no folder")

    assert [compiler.say(), compiler.say()] == ["version 1.0\n"] * 2
    assert compiler.times() == 2


def test_a_long_answer_is_not_kept_and_the_oldest_go_first(compiler: Compiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(version_cache, "MOST", 2)
    for word in ("a", "b", "c"):
        compiler.say(word)
    compiler.say("a")
    assert compiler.times() == 4
    assert len(version_cache._read(compiler.kept)) == 2  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(version_cache, "MOST_CHARACTERS", 5)
    compiler.write("echo version 3.0")
    compiler.say()
    assert compiler.say() == "version 3.0\n"
    assert Path(compiler.kept).stat().st_mode & 0o077 == 0
