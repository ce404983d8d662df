"""Start one of the judge's processes: `main.py owner|reference|candidate|program`."""

import os
import sys


def main() -> int:
    """Dispatch on the role named on the command line."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    role = sys.argv[1] if len(sys.argv) == 2 else ""
    if role == "owner":
        import owner

        return owner.main()
    if role == "reference":
        import reference

        return reference.main()
    if role == "candidate":
        import candidate

        return candidate.main()
    if role == "program":
        import program_player

        return program_player.main()
    print("usage: main.py owner|reference|candidate|program", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
