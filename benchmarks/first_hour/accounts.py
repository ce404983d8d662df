"""Accounts that are made for one run and deleted after it; root alone can."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def accounts(*names: str) -> Generator[list[Path]]:
    """Make ordinary accounts; yield the home folder of each. They are deleted at the end, after SIGTERM as well."""
    if os.geteuid() != 0:
        raise SystemExit("This needs root, to make ordinary accounts and delete them again.")
    homes: list[Path] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in names:
            home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/var/tmp"))
            homes.append(home)
            command = ["useradd", "--home-dir", str(home), "--no-create-home", "--shell", "/bin/sh", "--password", "*"]
            subprocess.run([*command, name], check=True)
            home.chmod(0o755)
            give(home, name)
        yield homes
    finally:
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)
        for home in homes:
            shutil.rmtree(home, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def give(folder: Path, name: str) -> None:
    """Make a folder and all in it an account's."""
    about = pwd.getpwnam(name)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, about.pw_uid, about.pw_gid, follow_symlinks=False)
