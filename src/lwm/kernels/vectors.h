// Vectors of float32 as wide as the processor has them, and the functions of the gates on them.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
enum { WIDTH = 16, ROWS = 8 };
#elif defined(__AVX2__)
enum { WIDTH = 8, ROWS = 4 };
#else
enum { WIDTH = 4, ROWS = 4 };
#endif

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4)));

#define UNROLL _Pragma("GCC unroll 16")

static inline vec load(const float *p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
static inline void store(float *p, vec v) { std::memcpy(p, &v, sizeof v); }
static inline vec all(float s) { return s - (vec){}; }

// e^x by 2^k times a polynomial; |x| is held below 87, where the gates are flat in float32.
static inline vec expv(vec x) {
    x = x > 87.0f ? all(87.0f) : x;  // in this form a NaN stays one
    x = x < -87.0f ? all(-87.0f) : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
    vec shifted = x * 1.44269504f + magic;
    vec k = shifted - magic;
    vec f = x - k * 0.693359375f;
    f = f + k * 2.12194440e-4f;
    vec p = all(1.0f / 5040);
    p = p * f + 1.0f / 720;
    p = p * f + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    ivec bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    ivec scale = (bits << 23) + 0x3f800000;  // the low bits of `shifted` hold k
    vec s;
    std::memcpy(&s, &scale, sizeof s);
    return p * s;
}
static inline vec sigmoid(vec x) { return 1.0f / (1.0f + expv(-x)); }
static inline vec tanhv(vec x) { return 1.0f - 2.0f / (1.0f + expv(x + x)); }
