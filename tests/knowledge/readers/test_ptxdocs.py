"""Instructions, as pages and as headers that CCCL generates."""

from gpu_mcp_server.knowledge.readers.ptxdocs import instruction_entry

PAGE = """\
stack.push.b32
^^^^^^^^^^^^^^
.. code-block:: cuda

   // stack.push.b32 [box], value; // PTX ISA 80, SM_90
   template <typename = void>
   __device__ static inline void stack_push(uint32_t* box, uint32_t value);

stack.push.b64
^^^^^^^^^^^^^^
.. code-block:: cuda

   // stack.push.b64 [box], value; // PTX ISA 80, SM_90
   template <typename = void>
   __device__ static inline void stack_push(uint64_t* box, uint64_t value);
"""
HEADER = """\
// This file was automatically generated. Do not edit.
/*
// stack.push.b32 [box], value; // PTX ISA 80, SM_90
template <typename = void>
__device__ static inline void stack_push(uint32_t* box, uint32_t value);
*/
#if __cccl_ptx_isa >= 800
template <typename = void>
_CCCL_DEVICE static inline void stack_push(uint32_t* __box, uint32_t __value) { asm("stack.push.b32"); }
#endif
/*
// stack.push.b64 [box], value; // PTX ISA 80,
SM_90
template <typename = void>
__device__ static inline void stack_push(uint64_t* box, uint64_t value);
*/
"""


def test_a_page_and_a_header_give_the_same_instruction():
    page, header = (
        instruction_entry(PAGE, "generated/stack_push.rst"),
        instruction_entry(HEADER, "generated/stack_push.h"),
    )

    for each in (page, header):
        assert (each.kind, each.name, each.title) == ("instruction", "stack.push", "stack.push")
        assert each.symbols == ("stack.push", "stack_push", "stack.push.b32", "stack.push.b64")
        assert "2 variants: stack.push.b32; stack.push.b64" in each.text
        assert "void stack_push(uint32_t* box" in each.text and "asm" not in each.text
