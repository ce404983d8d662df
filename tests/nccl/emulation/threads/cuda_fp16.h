#pragma once
struct __half { float f; __half(float x = 0) : f(x) {} operator float() const { return f; } };
