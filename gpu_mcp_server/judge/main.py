"""One of the judge's processes: `main` plays the owner, the reference, the candidate or a program's player."""

import sys
from typing import Sequence

from . import folders as folders  # which must see where the process begins


def main(arguments: Sequence[str]) -> int:
    """Play the role that is named."""
    role = arguments[0] if len(arguments) == 1 else ""
    if role == "owner":
        from .owner import owner_process

        return owner_process.main()
    if role == "reference":
        from .reference import reference_process

        return reference_process.main()
    if role == "candidate":
        from .candidate import candidate_process

        return candidate_process.main()
    if role == "program":
        from .programs import program_process

        return program_process.main()
    print("the judge has no role %r: owner, reference, candidate, program" % " ".join(arguments), file=sys.stderr)
    return 2
