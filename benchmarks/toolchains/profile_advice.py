"""Say for how many textbook profiles the first advice is an expert's: `python -m` this module, FILE... if not all."""

import sys

from tests.profilers.textbook import DATA, outcomes


def main() -> None:
    """Print a table for each file of tests/profilers/data/textbook, or for those that are named."""
    for file in sys.argv[1:] or sorted(p.name for p in DATA.glob("*.toml")):
        found = outcomes(file)
        right, harmful = sum(o.right for o in found), sum(o.harmful for o in found)
        print(f"\n{file}: right {right} of {len(found)}, harmful {harmful}\n")
        for o in found:
            print(f"| {o.name} | {'right' if o.right else 'harmful' if o.harmful else 'wrong'} | {o.advised[:160]} |")


if __name__ == "__main__":
    main()
