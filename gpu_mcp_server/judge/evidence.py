"""Tells the judge's own identity for the evidence, the progress of an evaluation, and its verdict."""

import hashlib
import json
import os
import sys
from typing import Any, Dict, List

from .folders import CODE, JUDGE, WORK


def shipped() -> List[str]:
    """Return the path of each file of the judge, below its folder, in order."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(JUDGE) for name in names]
    # Sorted, as the order of a directory's entries differs between file systems and would change the hash.
    return sorted(os.path.relpath(path, JUDGE) for path in found)


def sha256_of(name: str) -> str:
    """Return the sha256 of a file of the judge."""
    with open(os.path.join(JUDGE, name), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def harness_hash() -> str:
    """Return the sha256 over names and contents of all files of the judge: sources, bytecode, compiled code."""
    digest = hashlib.sha256()
    for name in shipped():
        # Name and content are delimited, so no two different sets of files feed the hash the same bytes.
        digest.update(name.encode() + b"\0" + bytes.fromhex(sha256_of(name)))
    return digest.hexdigest()


def compiled_hashes() -> Dict[str, str]:
    """Return the sha256 of each file of compiled code."""
    names = os.listdir(CODE) if os.path.isdir(CODE) else []
    return {name: sha256_of(os.path.join(CODE, name)) for name in sorted(names)}


def identity(seed: str, freeze: str) -> Dict[str, Any]:
    """Return what the evidence of every job says: the judge, seed, its hash, Python, and how players are frozen."""
    return {
        "harness_sha256": harness_hash(),
        "seed_commitment": commitment_of(seed),
        "seed": seed,
        "owner_python": sys.version.split()[0],
        "freeze": freeze,
    }


def commitment_of(seed: str) -> str:
    """Return the hash of a seed, which is published before the candidate runs."""
    return hashlib.sha256(seed.encode()).hexdigest()


def say(text: str, done: float) -> None:
    """Report progress on stdout."""
    print(json.dumps({"progress": text, "done": round(done, 3)}), flush=True)


def write_verdict(result: Dict[str, Any]) -> None:
    """Write the verdict at once or not at all."""
    temporary = os.path.join(WORK, "verdict.json.part")
    # An error's text may have halves of surrogate pairs, which UTF-8 cannot say: each becomes a question mark.
    with open(temporary, "w", encoding="utf-8", errors="replace") as file:
        json.dump(result, file, ensure_ascii=False)
    os.replace(temporary, os.path.join(WORK, "verdict.json"))
