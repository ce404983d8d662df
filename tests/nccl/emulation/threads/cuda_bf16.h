#pragma once
struct __nv_bfloat16 { float f; __nv_bfloat16(float x = 0) : f(x) {} operator float() const { return f; } };
