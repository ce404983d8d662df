"""The locks of the first hostd, as far as another process meets them: today's must exclude them, and they today's.

Run as a program: FOLDER UUID MODE; it says whether it got the lock, and holds it until its stdin ends.
"""

import fcntl
import json
import os
import re
import sys
from pathlib import Path


def opened(folder: str, uuid: str, kind: str) -> int:
    path = Path(folder, re.sub(r"[^A-Za-z0-9-]", "_", uuid) + "." + kind)
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_RDWR
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o1777)
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(fd, 0o666)
        return fd


def taken(folder: str, uuid: str, mode: str) -> bool:
    turn, lock = opened(folder, uuid, "turn"), opened(folder, uuid, "lock")
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, (fcntl.LOCK_EX if mode == "exclusive" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(turn)
    text = json.dumps({"job": "j-first", "mode": mode, "groups": []}).encode()
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))
    return True


if __name__ == "__main__":
    sys.stdout.write("held\n" if taken(*sys.argv[1:]) else "taken\n")
    sys.stdout.flush()
    sys.stdin.read()
