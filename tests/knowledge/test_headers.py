from gpu_mcp_server.knowledge.entries import Entry
from gpu_mcp_server.knowledge.glossary import blas_meaning
from gpu_mcp_server.knowledge.headers import Headers
from tests.knowledge.conftest import HEADER


def read(text: str, **options: object) -> dict[str, Entry]:
    headers = Headers(skip="_ptsz$", **options)  # type: ignore[arg-type]
    headers.read(text, "boxes.h")
    return {entry.name: entry for entry in headers.entries}


def test_a_function_has_its_comment_and_all_overloads():
    entry = read(HEADER)["boxesMoveAsync"]

    assert entry.kind == "function"
    assert entry.text.startswith("Moves bytes into a box without blocking the caller")
    assert "Note: The source must stay" in entry.text
    assert "Returns: boxesSuccess, boxesErrorLocked" in entry.text
    assert entry.signature.split("\n") == [
        "boxesError_t boxesMoveAsync(boxesBox_t box, const void *src, size_t count, boxesStream_t stream = 0);",
        "boxesError_t boxesMoveAsync(boxesBox_t box, const char *text);",
    ]
    assert HEADER.split("\n")[entry.first_line - 1].startswith("/**")


def test_export_macros_attributes_and_bodies_are_not_shown():
    found = read(HEADER)

    assert found["boxesFree"].signature == "boxesError_t boxesFree(boxesBox_t box);"
    assert found["boxesInlined"].signature == "static inline int boxesInlined(int a);"


def test_error_enumerators_are_entries_with_their_values_also_implicit_ones():
    found = read(HEADER)

    assert (found["boxesErrorLocked"].value, found["boxesErrorFull"].value) == (700, 701)
    assert found["boxesErrorLocked"].text == "A box was opened that is locked."
    assert found["boxesErrorFull"].text == "There is no room"
    assert found["boxesErrorFull"].signature == "boxesErrorFull = 701"
    assert "boxesErrorFull" in found["boxesError_enum"].symbols


def test_macros_are_documented_before_or_behind():
    found = read(HEADER)

    assert found["BOXES_PINNED"].text == "Memory that the system never pages out"
    assert found["BOXES_PINNED"].signature == "#define BOXES_PINNED 0x01"
    assert found["BOXES_NAME_BYTES"].text == "Longest name of a box, in bytes"
    assert "BOXES_H" not in found


def test_a_struct_keeps_what_is_said_of_its_fields():
    entry = read(HEADER)["boxesProperties"]

    assert entry.kind == "type"
    assert "int width; Width in cells" in " ".join(entry.text.split())


def test_skipped_names_are_left_out():
    assert "boxesMoveAsync_ptsz" not in read(HEADER)


def test_plain_comments_count_where_that_is_wanted():
    text = "/* Waits for all boxes. */\nint boxesWait(void);\n"

    assert read(text)["boxesWait"].text == ""
    assert read(text, any_comment=True)["boxesWait"].text == "Waits for all boxes."


def test_braces_that_never_close_do_not_swallow_the_rest_of_the_library():
    headers = Headers()
    headers.read("void broken() {\n" + "x;\n" * 100_000, "broken.h")
    headers.read(HEADER, "boxes.h")

    assert any(entry.name == "boxesFree" for entry in headers.entries)


def test_a_blas_name_says_what_it_computes():
    assert blas_meaning("cublasSgemmStridedBatched").startswith("BLAS: general matrix-matrix multiplication")
    assert "constant stride" in blas_meaning("cublasSgemmStridedBatched")
    assert "single precision" in blas_meaning("cublasSgemm_v2")
    assert "maximum absolute value" in blas_meaning("cublasIsamax_v2")
    assert blas_meaning("cublasSetStream_v2") == ""
