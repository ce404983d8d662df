import time

import pytest

from gpu_mcp_server.knowledge.readers.blas_names import blas_meaning
from gpu_mcp_server.knowledge.readers.c_headers import Headers
from gpu_mcp_server.knowledge.readers.cpp_headers import Classes
from gpu_mcp_server.knowledge.readers.entries import Entry
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


TEMPLATES = """\
#pragma once
BOXES_NAMESPACE_BEGIN
//! @rst
//! A pile of :cpp:type:`T`, one for a block.
//!
//! .. code-block:: c++
//!
//!    Pile<int, 128>(storage).Add(1);
//!
//! @endrst
template <typename T, int Size = Other<T, 2>::value>
class Pile
{
  /// Ours alone.
  void Hidden();

public:
  /// Makes one.
  explicit Pile(int size) : size_{size} {}
  //! Adds <tt>one</tt>.
  template <typename U> _CCCL_DEVICE T Add(U one) { if (one) { Call(one); } return T(); }
  //! @overload
  T Add(T first, T second);
  int size() const { return size_; }
};
namespace detail { /** Not told. */ int secret(int a); }
namespace piles {
/*! \\p merge joins two piles. */
template <class P>
P merge(const P& a, const P& b);
inline Pile<int> all_piles() { return Pile<int>(1); }
} // namespace piles
"""


def test_classes_their_methods_and_free_functions_of_a_template_library_are_entries():
    classes = Classes()
    classes.read(TEMPLATES, "pile.cuh", "boxes")
    found = {entry.name: entry for entry in classes.entries}

    assert set(found) == {"boxes::Pile", "boxes::Pile::Add", "boxes::merge"}
    pile, add = found["boxes::Pile"], found["boxes::Pile::Add"]
    assert (pile.kind, pile.signature, pile.first_line) == ("type", "class Pile", 3)
    assert pile.text.startswith("A pile of T, one for a block.") and "Pile<int, 128>(storage).Add(1);" in pile.text
    assert pile.symbols == ("boxes::Pile", "boxes::Pile::Add", "boxes::Pile::size")
    assert add.text == "Adds one."
    assert add.signature.split("\n") == ["template <typename U> T Add(U one)", "T Add(T first, T second)"]
    assert found["boxes::merge"].text == "merge joins two piles."

    everything = Classes(undocumented=True)
    everything.read(TEMPLATES, "pile.cuh", "boxes")
    assert {entry.name for entry in everything.entries} == {*found, "boxes::all_piles"}


def test_a_header_that_never_ends_what_it_opens_is_read_to_its_end():
    classes = Classes()
    classes.read(
        "namespace boxes { class A { public: /** Told. */ void f(" + "x, " * 20_000 + "{ }}}}} ;;", "a.h", "boxes"
    )

    assert classes.entries == []


@pytest.mark.parametrize(
    "part",
    ["/* left open\n", "/** left open ", "#define A 1 /* left open\n", "enum e { A, /* left open\n"],
)
def test_comments_that_nobody_closed_are_read_once(part: str):
    text = "int before(int a);\n" + part * (200_000 // len(part))
    begin = time.monotonic()
    found = read(text)
    classes = Classes()
    classes.read(text, "open.h", "")

    assert "before" in found
    assert time.monotonic() - begin < 10


def test_a_word_without_end_is_searched_once():
    begin = time.monotonic()
    read("int before(int a);\nint " + "a" * 200_000 + ";\n")
    assert time.monotonic() - begin < 10
