"""One of the judge's processes: `main` plays the owner, the reference, the candidate or a program's player."""

import importlib
import sys
from typing import Sequence

from . import folders as folders  # which must see where the process begins

ROLES = {
    "owner": "owner.owner_process",
    "reference": "reference.reference_process",
    "candidate": "candidate.candidate_process",
    "program": "programs.program_process",
}


def main(arguments: Sequence[str]) -> int:
    """Play the role that is named."""
    role = arguments[0] if len(arguments) == 1 else ""
    if role in ROLES:
        return int(importlib.import_module("." + ROLES[role], __package__).main())
    print("the judge has no role %r: %s" % (" ".join(arguments), ", ".join(ROLES)), file=sys.stderr)
    return 2
