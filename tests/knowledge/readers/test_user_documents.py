"""Documents of users: every form, and everything that can be wrong with a file."""

from pathlib import Path

import pytest

from gpu_mcp_server.knowledge.readers import user_documents
from gpu_mcp_server.knowledge.readers.html_documents import page_markdown
from gpu_mcp_server.knowledge.readers.manpages import lapack_entries, page_entries
from gpu_mcp_server.knowledge.readers.markup import document_entries
from gpu_mcp_server.knowledge.readers.user_documents import read_documents
from tests.knowledge.conftest import GUIDE

FILLER = "It says so in as many words as a section needs to be kept at all. "


def pdf(pages: list[str]) -> bytes:
    """Return a small valid PDF with a line of text a page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids: list[str] = []
    for text in pages:
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        content = len(objects)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R /Resources {font} >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out, offsets = "%PDF-1.4\n", list[int]()
    for number, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer << /Size {size} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF"
    return out.encode()


def test_markdown_is_divided_at_headings_and_not_within_code():
    found = document_entries(GUIDE.split("---\n", 2)[2], "stacking.md", "markdown")

    assert [entry.title for entry in found] == ["Stacking boxes"]
    assert found[0].headings == (
        "Stacking boxes",
        "Stacking boxes > Why does a tower fall?",
        "Stacking boxes > Moving many boxes at once",
    )
    assert "# not a heading" in found[0].text


def test_long_sections_are_entries_of_their_own():
    text = f"# One\n\n{FILLER * 20}\n\n## Two\n\n{FILLER * 20}\n"

    assert [entry.title for entry in document_entries(text, "a.md", "markdown")] == ["One", "One > Two"]


def test_an_environment_variable_of_a_restructured_text_page_is_its_own_entry_with_its_values():
    text = f"Variables\n=========\n\nBOX_SIZE\n--------\n{FILLER}\n\nValues accepted\n^^^^^^^^^^^^^^^\nAny number of cells.\n"

    entry = document_entries(text, "env.rst", "rst", variables=True)[-1]

    assert (entry.kind, entry.symbols) == ("env", ("BOX_SIZE",))
    assert "Any number of cells" in entry.text


def test_html_loses_scripts_and_navigation_and_keeps_code():
    page = page_markdown(
        "<title>T</title><nav>menu</nav><h1>Boxes</h1><script>evil()</script><p>Square &amp; flat.</p><pre>a  b\n</pre>"
    )

    assert page == "# Boxes\n\nSquare & flat.\n\n```\na  b\n\n```"


def test_a_pdf_is_read_by_pages(tmp_path: Path):
    (tmp_path / "boxes.pdf").write_bytes(pdf([FILLER + "First.", FILLER + "Second."]))

    reading = read_documents(tmp_path)

    assert reading.files == 1
    assert "Second." in " ".join(entry.text for entry in reading.entries)
    assert reading.entries[0].place == "boxes.pdf"


def test_what_is_broken_is_said_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user_documents, "FILE_BYTES", 100_000)
    monkeypatch.setattr(user_documents, "TEXT_BYTES", 5_000)
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 and then nothing that is one")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2" * 100)
    (tmp_path / "latin.md").write_bytes(f"# Größe\n\n{FILLER}".encode("cp1252"))
    (tmp_path / "utf16.md").write_bytes(f"# Wide\n\n{FILLER}".encode("utf-16"))
    (tmp_path / "huge.html").write_bytes(b"<p>" + b"x " * 60_000)
    (tmp_path / "long.md").write_text(f"# Long\n\n{FILLER * 200}")
    (tmp_path / "outside.md").symlink_to("/etc/hostname")

    reading = read_documents(tmp_path)

    said = "\n".join(reading.notes)
    assert "broken.pdf: the PDF is broken" in said
    assert "binary.txt: binary, not text" in said
    assert "latin.md: not UTF-8 (byte 4); read as Windows-1252" in said
    assert "huge.html: 0 MB is over the limit" in said
    assert "long.md: only its first 0 MB were read" in said
    assert "outside.md: a link that leaves the folder" in said
    assert {entry.place for entry in reading.entries} == {"latin.md", "utf16.md", "long.md"}
    assert any("Größe" in entry.title for entry in reading.entries)


def test_a_folder_has_a_limit_of_bytes_and_of_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(f"# N{number}\n\n{FILLER * 40}")
    monkeypatch.setattr(user_documents, "MOST_ENTRIES", 3)
    assert "more than 3 sections" in read_documents(tmp_path).notes[0]
    monkeypatch.setattr(user_documents, "FOLDER_BYTES", 6_000)
    assert "stopped at 2.md: the folder has more than" in read_documents(tmp_path).notes[0]


def test_a_manual_page_gives_name_signature_and_aliases(tmp_path: Path):
    page = ".TH BOX_Move 3\n.SH NAME\n\\fBBOX_Move\\fP, \\fBBOX_Imove\\fP \\- Moves a box\n.SH SYNTAX\n.SH C Syntax\n"
    page += "int BOX_Move(int box)\n.SH Fortran Syntax\nCALL BOX_MOVE\n.SH DESCRIPTION\nMoves it.\n"
    (tmp_path / "BOX_Move.3").write_text(page)
    (tmp_path / "BOX_Imove.3").write_text(".so man3/BOX_Move.3\n")

    (entry,) = page_entries(sorted(tmp_path.iterdir()))

    assert (entry.name, entry.signature) == ("BOX_Move", "int BOX_Move(int box)")
    assert "BOX_Imove" in entry.symbols
    assert entry.text.startswith("BOX_Move, BOX_Imove - Moves a box")
    assert "CALL" not in entry.text


def test_four_precisions_of_a_routine_are_one_entry(tmp_path: Path):
    for letter, name in zip("sd", ("single_blas", "double_blas"), strict=True):
        (tmp_path / f"{name}.3").write_text(f'.SH "Functions"\n.SS "subroutine {letter}stack (integer n)"\nStacks n.\n')

    (entry,) = lapack_entries(sorted(tmp_path.iterdir()))

    assert entry.symbols == ("dstack", "sstack")


def test_a_folder_without_documents_gives_nothing(tmp_path: Path):
    assert read_documents(tmp_path).entries == []
    assert lapack_entries([]) == []


MANUAL_OF_A_USER = f"""\
# Lathe

The lathe turns shafts.

## latheStart()

Starts it.

## Care

{FILLER}

| Error | Meaning |
| --- | --- |
| `LATHE_ERR_HOT` | the spindle is above 80 degrees |
| LATHE_ERR_OIL | no oil |
| none | all is well |
"""


def test_a_users_page_is_divided_at_every_heading_and_row_that_is_a_name(tmp_path: Path):
    (tmp_path / "lathe.md").write_text(MANUAL_OF_A_USER)

    found = {entry.name: entry for entry in read_documents(tmp_path).entries}

    assert [*found] == ["Lathe", "latheStart", "Lathe > Care", "LATHE_ERR_HOT", "LATHE_ERR_OIL"]
    assert (found["latheStart"].kind, found["latheStart"].text) == ("term", "Starts it.")
    row = found["LATHE_ERR_HOT"]
    assert row.text == "Error: `LATHE_ERR_HOT`; Meaning: the spindle is above 80 degrees"
    assert (row.title, row.first_line) == ("Lathe > Care > LATHE_ERR_HOT", 15)
    assert MANUAL_OF_A_USER.split("\n")[row.first_line - 1].startswith("| `LATHE_ERR_HOT`")


def test_a_table_in_html_and_the_pages_of_a_pdf_are_entries(tmp_path: Path):
    rows = "<tr><th>Code</th><th>Sense</th></tr><tr><td><code>ovenErrorCold</code></td><td>wait for heat</td></tr>"
    (tmp_path / "oven.html").write_text(f"<title>Oven</title><p>{FILLER}</p><table>{rows}</table>")
    (tmp_path / "oven.pdf").write_bytes(
        pdf(["One short page of eight words or so here.", "And another such page of eight words."])
    )

    found = read_documents(tmp_path).entries

    assert [entry.text for entry in found if entry.kind == "term"] == ["Code: ovenErrorCold; Sense: wait for heat"]
    assert [entry.title for entry in found if entry.place == "oven.pdf"] == ["oven.pdf > page 1", "oven.pdf > page 2"]
