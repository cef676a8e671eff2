// Products of bfloat16: twice as many a cycle as of float32, summed in float32.
//
// What is multiplied is rounded to 8 bits of mantissa on its way into a product; everything else
// stays float32.  Only for processors that multiply bfloat16 (AVX512-BF16): HAS_PAIRS.

#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define HAS_PAIRS 1

#include <immintrin.h>

#include <atomic>
#include <thread>
#include <vector>

typedef uint32_t pair;  // two bfloat16 that a product takes together

enum { CHUNK = 128 };  // pairs of rows whose gradients wait in the cache for the weights' product

static inline long padded(long n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

static inline __m256i rounded(vec v) { return (__m256i)_mm512_cvtneps_pbh((__m512)v); }

// Two vectors side by side: lane i holds (low[i], high[i]).
static inline __m512i paired(vec low, vec high) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(rounded(low)),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(high)), 16));
}

static inline vec head(const float *p, long n) {  // the first n < WIDTH values, then zeros
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

// A row of n floats as padded(n) / 2 pairs of neighbours.
static inline void round_row(const float *from, long n, pair *to) {
    long j = 0;
    for (; j + WIDTH <= n; j += WIDTH) _mm256_storeu_si256((__m256i *)(to + j / 2), rounded(load(from + j)));
    if (j < n) _mm256_storeu_si256((__m256i *)(to + j / 2), rounded(head(from + j, n - j)));
}

// Two rows of n floats (the second may be missing) as padded(n) pairs, one of each.
static inline void pair_rows(const float *low, const float *high, long n, pair *to) {
    const vec none = {};
    long j = 0;
    for (; j + WIDTH <= n; j += WIDTH)
        _mm512_storeu_si512(to + j, paired(load(low + j), high ? load(high + j) : none));
    if (j < n) _mm512_storeu_si512(to + j, paired(head(low + j, n - j), high ? head(high + j, n - j) : none));
}

// acc[m][g] += a[m, k] . w[k][g] over `depth` pairs; strides in pairs.
template <int M, int G>
static inline void multiply(vec (&acc)[M][G], const pair *a, long row, long next, const pair *w, long stride, long depth) {
    for (long k = 0; k < depth; k++, w += stride, a += next) {
        __m512bh column[G];
        UNROLL for (int g = 0; g < G; g++) column[g] = (__m512bh)_mm512_loadu_si512(w + g * WIDTH);
        UNROLL for (int m = 0; m < M; m++) {
            const __m512bh s = (__m512bh)_mm512_set1_epi32((int)a[m * row]);
            UNROLL for (int g = 0; g < G; g++) acc[m][g] = (vec)_mm512_dpbf16_ps((__m512)acc[m][g], s, column[g]);
        }
    }
}

// out[m][0 .. 16 G) (+)= a[m] . w, of which `columns` are real.
template <int M, int G>
static void product_tile(const pair *a, long row, long next, const pair *w, long stride, long depth,
                         float *out, long out_row, long columns, bool add) {
    vec acc[M][G] = {};
    multiply<M, G>(acc, a, row, next, w, stride, depth);
    for (int m = 0; m < M; m++)
        for (int g = 0; g < G; g++) {
            float *to = out + m * out_row + g * WIDTH;
            const long left = columns - g * WIDTH;
            if (left >= WIDTH) {
                store(to, add ? load(to) + acc[m][g] : acc[m][g]);
            } else if (left > 0) {
                const vec sum = add ? head(to, left) + acc[m][g] : acc[m][g];
                _mm512_mask_storeu_ps(to, (__mmask16)((1u << left) - 1), (__m512)sum);
            }
        }
}

template <int M, int G>
static void product_rows(const pair *a, long row, long next, const pair *w, long stride, long depth,
                         float *out, long out_row, long columns, bool add, long rows) {
    if (rows >= M) product_tile<M, G>(a, row, next, w, stride, depth, out, out_row, columns, add);
    else if constexpr (M > 1) product_rows<M - 1, G>(a, row, next, w, stride, depth, out, out_row, columns, add, rows);
}

// out [rows, columns] (+)= a times w; a block of G vectors of w is `block` pairs away from the next.
template <int G>
static void product(long rows, long columns, long depth, const pair *a, long row, long next, const pair *w,
                    long stride, long block, float *out, long out_row, bool add) {
    for (long j = 0; j < columns; j += G * WIDTH, w += block)
        for (long m = 0; m < rows; m += ROWS)
            product_rows<ROWS, G>(a + m * row, row, next, w, stride, depth, out + m * out_row + j, out_row, columns - j, add, rows - m);
}

static pair *memory(long pairs) { return static_cast<pair *>(std::aligned_alloc(64, padded(pairs) * sizeof(pair))); }

// work(part, begin, end) for each of `parts` shares of the rows, in whole tiles, on a thread each.
template <class Work>
static void share(long parts, long rows, Work work) {
    const long tiles = (rows + ROWS - 1) / ROWS;
    auto run = [&](long part) {
        const long end = tiles * (part + 1) / parts * ROWS;
        work(part, tiles * part / parts * ROWS, end < rows ? end : rows);
    };
    std::vector<std::thread> threads;
    for (long part = 1; part < parts; part++) {
        try {
            threads.emplace_back(run, part);
        } catch (...) {  // none to be had: this thread does it
            run(part);
        }
    }
    run(0);
    for (std::thread &thread : threads) thread.join();
}

#else
#define HAS_PAIRS 0
#endif
