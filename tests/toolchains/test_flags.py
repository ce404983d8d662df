"""Flags that pass, and the messages about the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mcp_server.errors import BadRequest
from gpu_mcp_server.toolchains.flags import checked_cc_flags, checked_nvcc_flags, linked_libraries


@pytest.mark.parametrize(
    "flag",
    [
        "-O2", "-Ofast", "-DN=4", "-DF(x)=x+1", "-DNAME=\"a b\"", "-UNDEBUG", "-Iinclude", "-Ia/b", "-std=c11", "-std=gnu++20",
        "-Wall", "-Wno-unused", "-Werror=return-type", "-g", "-ffast-math", "-fno-math-errno", "-funroll-loops",
        "-ffp-contract=off", "-march=native", "-march=armv8.2-a+sve", "-mavx2", "-mno-fma", "-mprefer-vector-width=512",
        "--param=max-unroll-times=4", "-pthread", "-lm", "-fopenmp", "-flto",
    ],
)  # fmt: skip
def test_useful_flags_of_gcc_pass(flag):
    assert checked_cc_flags([flag]) == (flag,)


DANGEROUS = [
    "-o", "-oelsewhere", "@file", "-fplugin=x.so", "-fplugin-arg-x-y", "-specs=x", "--specs=x", "-wrapper", "-B.", "-Bx",
    "-include", "-include/etc/passwd", "-imacros", "-isystem/x", "-I/etc", "-I../up", "-I", "-Ia/../../b", "-Wl,-rpath,/x",
    "-Wa,--x", "-Wp,-MD,x", "-Xlinker", "-Tx.ld", "-Lx", "-L/x", "-lssl", "-l:x.a", "-save-temps", "-fdump-tree-all",
    "-fprofile-use=/x", "-fprofile-generate", "-MD", "-MF", "-E", "-S", "-c", "-x", "kernel2.c", "-fuse-ld=x", "-mllvm",
    "-fdiagnostics-format=json", "-fsanitize=address", "-v", "-###", "-", "", "-D", "-D1", "-fmax-errors=/x", "-nostdlib",
    "-O3\n-o", "-DX=`id`", "-DX=$(id)", "-DX=\x00", "-fauto-profile=x", "-fopt-info-all=x", "--param=x=y/z", "-fsyntax-only",
]  # fmt: skip


@pytest.mark.parametrize("flag", DANGEROUS)
def test_flags_that_read_write_or_run_are_refused_by_both(flag):
    with pytest.raises(BadRequest):
        checked_cc_flags([flag])
    with pytest.raises(BadRequest):
        checked_nvcc_flags([flag])


@pytest.mark.parametrize(
    ("given_flags", "checked"),
    [
        (["--use_fast_math"], ("-use_fast_math",)),
        (["-maxrregcount", "64"], ("-maxrregcount=64",)),
        (["--maxrregcount=64"], ("-maxrregcount=64",)),
        (["-Xptxas", "-O1,--warn-spills,-dlcm=cg"], ("-Xptxas=-O1,--warn-spills,-dlcm=cg",)),
        (["--ptxas-options=-v"], ("-Xptxas=-v",)),
        (["-Xcompiler", "-fopenmp,-march=native"], ("-Xcompiler=-fopenmp,-march=native",)),
        (["-D", "N=4", "-I", "inc", "-l", "cublas"], ("-DN=4", "-Iinc", "-lcublas")),
        (["--define-macro=N", "--optimize=2"], ("-DN", "-O2")),
        (["--extended-lambda", "--expt-relaxed-constexpr"], ("-extended-lambda", "-expt-relaxed-constexpr")),
        (["--fmad=false", "-ftz=true", "-prec-div=false"], ("-fmad=false", "-ftz=true", "-prec-div=false")),
        (["-rdc=true", "-lineinfo", "-G", "-std=c++20"], ("-rdc=true", "-lineinfo", "-G", "-std=c++20")),
        (["-diag-suppress", "177,549"], ("-diag-suppress=177,549",)),
    ],
)
def test_useful_flags_of_nvcc_pass_in_their_short_spelling(given_flags, checked):
    assert checked_nvcc_flags(given_flags) == checked


@pytest.mark.parametrize(
    "flags",
    [
        ["--run"], ["-run"], ["-ccbin=/x"], ["--compiler-bindir", "/x"], ["-Xlinker", "-rpath=/x"], ["-Xcompiler=-wrapper"],
        ["-Xcompiler", "-fplugin=x.so"], ["-Xcompiler", "-fopenmp,-o,x"], ["-Xcompiler", "-DX"], ["-Xptxas", "--output-file=x"],
        ["-Xptxas", "-o"], ["-Xptxas=@x"], ["--options-file", "x"], ["-optf", "x"], ["-keep-dir=x"], ["--keep"], ["-odir", "x"],
        ["--dryrun"], ["-cubin"], ["-lib"], ["-cudart=shared"], ["-maxrregcount"], ["-maxrregcount", "x"], ["--pre-include=/x"],
        ["-Xnvlink", "x"], ["-Xcudafe", "--x"], ["-Xarchive", "x"], ["--use-local-env"], ["--input-drive-prefix=x"], ["-isystem=/x"],
        ["--library-path=/x"], ["--include-path=/x"], ["-time=x"], ["--fdevice-time-trace=x"], ["-MF=x"], ["--output-file=x"],
    ],
)  # fmt: skip
def test_flags_of_nvcc_that_read_write_or_run_are_refused(flags):
    with pytest.raises(BadRequest):
        checked_nvcc_flags(flags)


@pytest.mark.parametrize(
    "flag", ["-arch=sm_90", "-gencode=arch=compute_90,code=sm_90", "--gpu-architecture=sm_90", "-code=sm_90"]
)
def test_the_architecture_is_an_argument_of_its_own(flag):
    with pytest.raises(BadRequest, match="argument `arch`"):
        checked_nvcc_flags([flag])


def test_a_refusal_names_the_flag_and_what_is_allowed():
    with pytest.raises(BadRequest, match=r"-fplugin=x\.so is not allowed.*Allowed are -O0 to -O3"):
        checked_cc_flags(["-fplugin=x.so"])


def test_too_many_flags_are_refused():
    with pytest.raises(BadRequest, match="64"):
        checked_cc_flags(["-O2"] * 65)


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_text_is_either_refused_or_a_single_argument_that_is_no_file(flags):
    for check in (checked_cc_flags, checked_nvcc_flags):
        try:
            accepted = check(flags)
        except BadRequest:
            continue
        assert all(flag.startswith("-") and flag.isprintable() for flag in accepted)


def test_libraries_that_compute_are_known_from_those_that_do_not():
    flags = ["-lcublas", "-lm", "-lineinfo", "--library=cufft", "-O3"]

    assert linked_libraries(flags) == ["-lcublas", "--library=cufft"]
    spelled = ["-lnvrtc", "-l", "nvrtc", "--library=nvrtc", "--library", "nvrtc"]
    assert linked_libraries(spelled, ["nvrtc"]) == ["-lnvrtc", "nvrtc", "--library=nvrtc", "nvrtc"]
