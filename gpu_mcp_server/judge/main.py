"""Start one of the judge's three processes: `main.py owner|reference|candidate`."""

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
    print("usage: main.py owner|reference|candidate", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
