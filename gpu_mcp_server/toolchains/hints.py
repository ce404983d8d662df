"""Hints that usually mend a compiler's complaint.

Each row was written for a message that an agent met here, or that the compilers' samples show; where no row fits there
is no hint, as a wrong one costs more than none.
"""

import re
from functools import cache

# The first row that matches decides.
_ROWS: tuple[tuple[str, str], ...] = (
    (r"wgmma\S* instructions are serialized due to (?:the presence of Extern calls|.*crossing function boundary)",
     "Inline every function that is called between wgmma.fence and wgmma.wait_group (__forceinline__); take printf and "
     "assert out."),
    (r"wgmma\S* instructions are serialized due to insufficient register",
     "Touch accumulators behind wgmma.wait_group alone, and keep fewer live: a smaller tile for each warp group, or "
     "more registers (__launch_bounds__, setmaxnreg)."),
    (r"wgmma\S* instructions are serialized due to non wgmma instructions",
     "Write a wgmma's registers before wgmma.fence and read them behind wgmma.wait_group; nothing between may touch "
     "them."),
    (r"wgmma\S* instructions are serialized due to ill formed",
     "Keep the order on every path: wgmma.fence, all wgmma.mma_async, wgmma.commit_group, wgmma.wait_group."),
    (r"wgmma\S* instructions are serialized due to .*divergent",
     "Let all warps of the group take the same way through wgmma: no branch on the thread around it."),
    (r"'setmaxnreg' ignored",
     "Give __launch_bounds__ (or -maxrregcount), so that the registers at entry are known, and call nothing extern."),
    (r"of static shared memory, and 49152 are sure",
     "Make it `extern __shared__`, raise the limit with cudaFuncSetAttribute(kernel, "
     "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), and give the size at the launch."),
    (r"in local memory \(a stack frame\)",
     "A local array is indexed by a value known at run time alone, or its address is taken: unroll its loops "
     "(#pragma unroll), or put it into shared memory."),
    (r"uses too much shared data",
     "Static shared memory ends at 48 KiB a block: make it `extern __shared__`, raise the limit with "
     "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); give the size at the launch."),
    (r"Instruction 'wgmma[^']*' not supported on \.target|'wgmma[^']*' requires",
     "wgmma exists on sm_90a alone: compile with that, or write tcgen05 for sm_100a, mma.sync for any other."),
    (r"Instruction 'tcgen05[^']*' not supported on \.target",
     "tcgen05 exists on sm_100a, sm_103a and sm_110a alone: compile with one, or write wgmma for sm_90a, mma.sync for "
     "any other."),
    (r"'(?:setmaxnreg|tensormap\.replace)[^']*' (?:not supported on \.target|requires)",
     "This instruction exists on architectures with suffix a alone, from sm_90a on: compile with sm_90a, sm_100a, "
     "sm_120a or what your GPU is."),
    (r"'mma with block scale' not supported|Feature '\.(?:block_scale|scale_vec|kind::mxf)\S*' not supported",
     "mma.sync with block scales exists on sm_120a and sm_121a alone: compile with one, or write tcgen05 for sm_100a."),
    (r"not supported on \.target|requires \.target|Feature '.*' requires|requires PTX ISA",
     "The instruction needs a newer architecture than the one compiled for."),
    (r"Unsupported gpu architecture|does not generate code for",
     "This nvcc is too old or too new for that architecture; gpu_status names the toolchain and the GPUs."),
    (r"undefined hidden symbol: __(?:ockl|ocml|oclc)",
     "AMD's device libraries were not linked: leave out -nogpulib, or install rocm-device-libs."),
    (r"invalid target ID|cannot find ROCm device library",
     "This compiler is too old for that architecture; another one of the host may know it (gpu_status)."),
    (r"undeclared identifier '(?:blockIdx|blockDim|threadIdx|gridDim|__syncthreads|hip[A-Z]\w*)'|"
     r"unknown type name '__global__'",
     "Add #include <hip/hip_runtime.h>."),
    (r"(?:identifier|file) '?(?:cuda\w+|cublas\w+|device_launch_parameters)(?:\.h)?'|'cuda\w*\.h' file not found",
     "This is CUDA: port_source turns it into HIP."),
    (r"Unresolved extern function|^Undefined reference to '|undefined hidden symbol",
     "A device function is declared but not defined in this file: define it here, or mark it inline in the header."),
    (r"calling a __host__ function.*from a __(?:global|device)__ function|is undefined in device code",
     "Mark the function __device__ (or __host__ __device__), or use CUDA's own version of it."),
    (r"calling a constexpr __host__ function",
     "Add the flag --expt-relaxed-constexpr, or mark the function __device__."),
    (r"annotation on (?:a )?lambda requires --extended-lambda", "Add the flag --extended-lambda."),
    (r"(?:identifier|name) \"?(?:__half2?|half2?|__float2half\w*|__half2float\w*|h\w+2)\"? is undefined",
     "Add #include <cuda_fp16.h>."),
    (r"identifier \"(?:__nv_bfloat162?|nv_bfloat162?|__float2bfloat16\w*|__bfloat162float)\" is undefined",
     "Add #include <cuda_bf16.h>."),
    (r"identifier \"__nv_fp8\w*\" is undefined", "Add #include <cuda_fp8.h>."),
    (r"(?:identifier|name(?: must be a)?.*) \"(?:nvcuda|wmma)\"", "Add #include <mma.h>."),
    (r"\"(?:cooperative_groups|cg)\"", "Add #include <cooperative_groups.h>."),
    (r"(?:\"|'|unknown type name ')u?int(?:8|16|32|64)_t(?:\"|')",
     "Add #include <cstdint> (<stdint.h> in C)."),
    (r"(?:\"|')(?:FLT|DBL)_(?:MAX|MIN|EPSILON)(?:\"|')", "Add #include <cfloat> (<float.h> in C)."),
    (r"(?:\"|')(?:INFINITY|NAN|M_PI)(?:\"|')", "Add #include <cmath> (<math.h> in C)."),
    (r"no instance of overloaded function \"atomic\w+\" matches",
     "This atomic does not take these types here: atomicAdd takes double from sm_60 on, __half from sm_70, "
     "__nv_bfloat16 from sm_80, no 64-bit signed integer (cast the pointer to unsigned long long *)."),
    (r"more than one instance of overloaded function", "Cast the arguments, so that one overload fits exactly."),
    (r"static assertion failed|excessive recursion at instantiation",
     "Look at the instantiation below the message: the template's arguments come from there."),
    (r"expected a \";\"|expected ['\"]?;", "A statement just before this place does not end."),
    (r"undefined reference to [`'](?:GOMP_|omp_)", "Add the flag -fopenmp (for nvcc: -Xcompiler -fopenmp)."),
    (r"undefined reference to [`'](cublasLt|cublas|cufft|curand|cusparse|cusolver)",
     "Add its library to the flags, such as -lcublas."),
    (r"undefined reference to [`']cu[A-Z]",
     "Add the flag -lcuda: the driver API is not linked unasked. The runtime API (cudaXxx) needs no flag."),
    (r"undefined reference to",
     "Nothing defines this symbol: define it in this file, or check its spelling and extern \"C\"."),
    (r"multiple definition of", "The symbol is defined twice: make one static or inline."),
    (r"cannot find -l", "This library is not on the host; leave the -l flag out."),
    (r"torch/\w+\.h.*No such file|fatal error: torch",
     "Torch's headers are given to a source with PYBIND11_MODULE or TORCH_LIBRARY; others export `extern \"C\" int "
     "launch(...)` and need none."),
    (r"(?:cutlass|cute)/\S+(?:: No such file|\" ?$)|open source file \"(?:cutlass|cute)/",
     "The host has no CUTLASS: pip install nvidia-cutlass for judge_python, or name a clone's include folder in "
     "include_paths of the host."),
    (r"\b(?:cublas|cufft|curand|cusolver|cusparse|cudnn|cutensor)\w*\.h\"?(?:: No such file| ?$)",
     "This header comes with one of NVIDIA's libraries, which the host lacks: its package of the CUDA toolkit (such as "
     "libcublas-dev), or of pip (nvidia-cublas) for judge_python; link it with -lNAME."),
    (r"^packages do not fit each other: ",
     "The source is not at fault: a person installs versions that fit each other into the Python that compiles here "
     "(judge_python of the host, where that starts: see gpu_status), or name another host."),
    (r"ModuleNotFoundError: No module named",
     "The Python that compiles here lacks it (judge_python of the host, where that starts: see gpu_status): a person "
     "installs it there, or copy what you use of it into the file, which is compiled alone."),
    (r"attempted relative import",
     "The file is compiled alone, without its package: copy what you use of that into it."),
    (r"^kernel \w+ takes .*signature and constants lack",
     'Give the argument `triton`, such as {"signature": {"x": "*fp32", "n": "i32"}, "constants": {"BLOCK": 128}}: the '
     "kernel's constexprs go into constants."),
    (r"arange's arguments must be of type tl\.constexpr",
     "Make the size a parameter `SIZE: tl.constexpr`, or mark what the kernel computes of one: `size: tl.constexpr = "
     "2 * SIZE`."),
    (r"arange's range must be a power of 2",
     "Round the size up in the launcher (triton.next_power_of_2), and mask loads and stores by the true size."),
    (r"Loop-carried variable \w+ has initial type",
     "Let it begin with the type and shape that the loop gives it, such as tl.zeros([BLOCK], tl.float32)."),
    (r"Block pointers have been removed",
     "Write tl.make_tensor_descriptor, or plain pointers with masks; a host with an older Triton takes it as it is."),
    (r"'(?:thrust|cub|hipcub|rocprim|rocthrust|rocwmma|hiprand|hipblas|rocblas|miopen|ck)/\S+' file not found",
     "This header comes with one of ROCm's libraries, which the host lacks: its package (such as hipcub-dev, "
     "rocthrust-dev), or the library's include folder in include_paths of the host."),
    (r"\bhelper_(?:cuda|functions|string|math|timer|image)\.h\b",
     "This header is of NVIDIA's cuda-samples (folder Common): put what you use of it into the source."),
    (r"^cannot start .*: No such file or directory",
     "The host lacks this program: a person installs it there, or name another host."),
    (r"^cannot find \S+: No such file or directory",
     "The linker misses this file: build it before, or name the folder in which it lies (-LFOLDER, -BFOLDER)."),
    (r"No such file or directory|cannot open source file|' file not found",
     "The header is neither on the host nor where the source looks. evaluate_kernel judges one file: put the header's "
     "text into it; for a program problem send the folder that has both. For compile_kernel write_files both into one "
     "workspace, give `path`, and -IFOLDER where it lies in another folder."),
    (r"implicit declaration of function", "Include the header that declares it, or define it above its first use."),
    (r"Killed signal terminated program|out of memory", "The compiler ran out of memory: make the source smaller."),
    (r"unsupported GNU version|host compiler.*not supported", "This nvcc does not take this version of gcc."),
    (r"Stack size for entry function .* cannot be statically determined",
     "Recursion, or a call by pointer: replace it by a loop or a template, or set cudaLimitStackSize."),
    (r"Registers are spilled|Local memory used for function",
     "Fewer live values a thread, or a higher limit by __launch_bounds__ or -maxrregcount."),
    (r"no such instruction|selected processor does not support",
     "The processor's assembler does not know it: see -march."),
)  # fmt: skip


@cache
def _compiled_rows() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), hint) for pattern, hint in _ROWS)


def hint_for(message: str) -> str | None:
    """Return what usually mends it, if we know."""
    return next((hint for pattern, hint in _compiled_rows() if pattern.search(message)), None)
