"""Files of this machine that may travel: below folders that were opened, without what is ignored, and no secrets."""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from gpu_mcp_server.errors import LimitExceeded, NotFound, PathRefused
from gpu_mcp_server.services.workspaces.local_files import LEFT_OUT, checked_path

MAX_FILES = 20_000
MAX_BYTES = 2 << 30
"""Both as the server has them."""
MAX_SEEN = 200_000
"""Entries of folders that are looked at for one push."""
IGNORE_FILES = (".gitignore", ".gpumcpignore")
"""The second one counts more."""
SECRETS = GitIgnoreSpec.from_lines(
    (
        *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc", ".netrc", "_netrc", ".npmrc"),
        *(".pypirc", ".git-credentials", ".htpasswd", ".pgpass", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx"),
        *("*.keystore", "*.ppk", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!id_*.pub", "credentials.json"),
        *("client_secret*.json", "service-account*.json", "service_account*.json", "*.tfstate", "*.tfvars"),
        *(
            ".ssh/",
            ".gnupg/",
            ".aws/",
            ".azure/",
            ".kube/",
            ".docker/config.json",
            ".config/gcloud/",
            "logins.json",
            "secrets.toml",
        ),
    )
)
"""Names, in lower case, of what is not for others. Source: the names by which the programs that read them look."""
KEY_MARK = b"PRIVATE KEY-----"
"""Of RFC 7468, in the first line of a file whatever its name."""


@dataclass(frozen=True)
class ProjectFile:
    """A file that would travel."""

    path: str
    """Where it would stand in a workspace."""
    source: Path
    size: int
    executable: bool


@dataclass
class Selection:
    """Files of a folder that are sent, and those left out, each with its reason."""

    files: list[ProjectFile] = field(default_factory=list[ProjectFile])
    secrets: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])
    """`PATH: why`: links that leave the folder, pipes, names that a workspace cannot hold."""

    def note(self) -> str:
        """Say what stayed here; empty if nothing did but what the ignore files name."""
        said: list[str] = []
        if self.secrets:
            said.append(f"stayed here as secrets: {_some(self.secrets)}")
        if self.left_out:
            said.append(f"left out: {_some(self.left_out)}")
        return "; ".join(said)


class Folders:
    """The folders below which files may be read: where the client was started, and those that it declares."""

    def __init__(self, started_in: Path, *, closed: bool = False) -> None:
        """Keep them; `closed` reads none, whatever the client declares."""
        self.started_in, self._closed = started_in.resolve(), closed
        self._declared: list[Path] = []

    def declare(self, roots: Sequence[Path]) -> None:
        """Let the client open other folders, in place of those that it opened before."""
        self._declared = [root.resolve() for root in roots]

    def locate(self, text: str) -> Path:
        """Return where a path of a call leads, links resolved.

        Raises:
            NotFound: If there is nothing.
            PathRefused: If it is outside of all folders, or a secret.
        """
        if self._closed:
            raise PathRefused("This client has no local files.", hint="Give the text as source or files.")
        try:
            path = (self.started_in / Path(text).expanduser()).resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound("local file", text, hint="Paths are of this machine, where the client runs.") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise PathRefused(f"{text[:200]!r} cannot be read: {error}.") from None
        root = next((root for root in (self.started_in, *self._declared) if path.is_relative_to(root)), None)
        if root is None or root == Path("/"):
            opened = ", ".join(map(str, (self.started_in, *self._declared)))
            raise PathRefused(
                f"{str(path)!r} is outside of the folders that may be read: {opened}.",
                hint="Start the client in the project's folder, or copy the file there.",
            )
        below = path.relative_to(root).as_posix()
        if is_secret(below + "/" if path.is_dir() else below):
            raise PathRefused(f"{text!r} has a secret's name; it stays here.", hint="Rename it if it is none.")
        return path


def is_secret(path: str) -> bool:
    """Say whether a path, or a folder in it, is named as secrets are."""
    return SECRETS.match_file(path.lower())


def select_files(root: Path) -> Selection:
    """Return what of a folder, or which single file, would travel.

    Raises:
        LimitExceeded: If that is more than 20,000 files or 2 GiB; the largest parts are named.
        NotFound: If nothing is left.
    """
    chosen, total = Selection(), 0
    if not root.is_dir():
        chosen.files.append(file_at(root, root.name))
        return chosen
    parts: Counter[str] = Counter()
    for seen, found in enumerate(_walk(root, "", root, (), chosen), 1):
        if found is not None:
            chosen.files.append(found)
            total += found.size
            parts[found.path.partition("/")[0]] += found.size
        if len(chosen.files) > MAX_FILES or total > MAX_BYTES or seen > MAX_SEEN:
            largest = ", ".join(f"{name} ({size >> 20} MiB so far)" for name, size in parts.most_common(3))
            raise LimitExceeded(
                f"{str(root)!r} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; the most: {largest}. Nothing "
                "was sent.",
                hint="Name what stays here in .gpumcpignore (the rules of .gitignore), or push a folder below.",
            )
    if not chosen.files:
        raise NotFound("file to send in", str(root), hint=chosen.note() or "All files there are ignored.")
    chosen.files.sort(key=lambda file: file.path)
    return chosen


def file_at(source: Path, path: str) -> ProjectFile:
    """Return a file as it would travel.

    Raises:
        PathRefused: If it is no regular file, or a workspace cannot hold its name.
    """
    state = source.stat()
    if not stat.S_ISREG(state.st_mode):
        raise PathRefused(f"{str(source)!r} is no regular file.", hint="Give the path of a file.")
    return ProjectFile(checked_path(path), source, state.st_size, bool(state.st_mode & 0o111))


class ContentHashes:
    """The SHA-256 of files, kept for as long as a file's times, size and place stay as they are."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], str, int]] = {}

    def hash_of(self, file: ProjectFile) -> tuple[str, int]:
        """Return hash and size of a file's content; an empty hash for a private key.

        Raises:
            NotFound: If it has gone meanwhile.
        """
        try:
            with open_file(file.source) as opened:
                state = os.fstat(opened.fileno())
                mark = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                known = self._known.get(file.source)
                if known is None or known[0] != mark:
                    start = opened.read(128)
                    opened.seek(0)
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                    known = mark, "" if KEY_MARK in start else digest, opened.tell()
                    self._known[file.source] = known
                return known[1], known[2]
        except FileNotFoundError:
            raise NotFound("local file", file.path, hint="It vanished meanwhile; repeat the call.") from None
        except OSError as error:
            raise PathRefused(f"{file.path!r} cannot be read: {error.strerror}.") from error

    def forget(self, files: Sequence[ProjectFile]) -> None:
        """Read these again the next time."""
        for file in files:
            self._known.pop(file.source, None)


def open_file(path: Path):  # noqa: ANN201 - a BufferedReader
    """Open a regular file that is no link now; never waits for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise PathRefused(f"{str(path)!r} is no regular file any more.", hint="Repeat the call.")
    return file


Rules = tuple[tuple[str, GitIgnoreSpec], ...]
"""Ignore files with the folders that they stand in, the weakest first."""


def _walk(folder: Path, prefix: str, root: Path, rules: Rules, chosen: Selection) -> Iterator[ProjectFile | None]:
    """Yield each file that travels, and None for each other entry that was looked at."""
    rules = (*rules, *_rules_of(folder, prefix, root))
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        source, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
        if entry.name in LEFT_OUT or _is_ignored(path, is_folder, rules):
            yield None
        elif is_secret(path + "/" if is_folder else path):
            chosen.secrets.append(path)
            yield None
        elif is_folder:
            yield from _walk(source, path + "/", root, rules, chosen)
        else:
            yield _taken(source, path, root, chosen)


def _taken(source: Path, path: str, root: Path, chosen: Selection) -> ProjectFile | None:
    """Return a file, or what a link within the root leads to."""
    try:
        real = source.resolve(strict=True)
        if not real.is_relative_to(root) or (real != source and is_secret(real.relative_to(root).as_posix())):
            chosen.left_out.append(f"{path}: a link out of the folder or to a secret")
            return None
        return file_at(real, path)
    except (OSError, RuntimeError) as error:
        chosen.left_out.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    except PathRefused as error:
        chosen.left_out.append(str(error))
    return None


def _rules_of(folder: Path, prefix: str, root: Path) -> Iterator[tuple[str, GitIgnoreSpec]]:
    names = [folder / name for name in IGNORE_FILES]
    if folder == root:
        names.insert(0, root / ".git" / "info" / "exclude")
    for name in names:
        try:
            with open_file(name) as file:
                lines = file.read(1 << 20).decode("utf-8", "replace").splitlines()
        except (OSError, PathRefused):
            continue
        yield prefix, GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: str, is_folder: bool, rules: Rules) -> bool:
    """Say what the strongest rule about a path says. Source: gitignore(5): the nearest file's last pattern decides."""
    for prefix, spec in reversed(rules):
        verdict = spec.check_file(path[len(prefix) :] + ("/" if is_folder else "")).include
        if verdict is not None:
            return verdict
    return False


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(ascii(name)[1:-1] for name in names[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
