"""Prints the text of a PDF as JSON lines, one a page, with the titles of its outline.

A process of its own, with limits on memory and time: a file made to harm ends this process and nothing else. Needs
pypdf. Arguments: FILE, the most pages, the most megabytes of memory, the most seconds.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any, Dict, List


def _outline(reader: Any) -> Dict[int, List[Any]]:
    found: Dict[int, List[Any]] = {}

    def walk(items: Any, depth: int) -> None:
        for item in items:
            if isinstance(item, list):
                walk(item, depth + 1)
                continue
            title: Any = getattr(item, "title", "")
            with suppress(Exception):
                found.setdefault(reader.get_destination_page_number(item), []).append([depth, str(title)])

    try:
        walk(reader.outline, 0)
    except Exception:
        return {}
    return found


def main() -> None:
    """Print {"page": n, "titles": [[depth, title]], "text": ...} for each page."""
    path, pages, megabytes, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    import pypdf

    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        sys.exit("it is encrypted")
    titles = _outline(reader)
    for number, page in enumerate(reader.pages):
        if number >= pages:
            break
        text = page.extract_text() or ""
        sys.stdout.write(json.dumps({"page": number + 1, "titles": titles.get(number, []), "text": text}) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit("%s: %s" % (type(error).__name__, error))
