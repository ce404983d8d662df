"""Where files lie: the judge's own, which its processes can only read, and the workspace of this process's role."""

import hashlib
import os
from typing import Dict, List

JUDGE = os.path.dirname(os.path.abspath(__file__))
WORK = os.getcwd()
"""A process begins in its workspace. `main` imports this early: somebody else's code may go elsewhere."""
CODE = os.path.join(JUDGE, "compiled")
"""Code that was compiled for this host. Not beside the sources: `elements.so` would be imported for `elements.py`."""


def shipped() -> List[str]:
    """Return the path of each file of the judge, below its folder, in order."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(JUDGE) for name in names]
    return sorted(os.path.relpath(path, JUDGE) for path in found)


def sha256_of(name: str) -> str:
    """Return the sha256 of a file of the judge."""
    with open(os.path.join(JUDGE, name), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def harness_hash() -> str:
    """Return the sha256 over names and contents of all files of the judge: sources, bytecode, compiled code."""
    digest = hashlib.sha256()
    for name in shipped():
        digest.update(name.encode() + b"\0" + bytes.fromhex(sha256_of(name)))
    return digest.hexdigest()


def compiled_hashes() -> Dict[str, str]:
    """Return the sha256 of each file of compiled code."""
    names = os.listdir(CODE) if os.path.isdir(CODE) else []
    return {name: sha256_of(os.path.join(CODE, name)) for name in sorted(names)}
