// A linear layer with products of bfloat16 (``pairs.h``).  Inputs and outputs must be multiples of WIDTH.

#include "pairs.h"

extern "C" int has_bf16(void) { return HAS_PAIRS; }

#if HAS_PAIRS

// Rows begin .. end; the sums over rows are this part's own.  False without memory.
static bool linear_part(long inputs, long outputs, long begin, long end, const float *x, const float *d,
                        const pair *to_x, float *d_x, float *d_w, float *d_b) {
    const long O = outputs / 2, wide = 2 * WIDTH, columns = (outputs + wide - 1) / wide * wide;
    pair *d_row = memory(2 * CHUNK * O + CHUNK * (columns + inputs));
    if (!d_row) return false;
    pair *d_two = d_row + 2 * CHUNK * O, *x_two = d_two + CHUNK * columns;
    for (long r = begin; r < end; r += 2 * CHUNK) {
        const long n = end - r < 2 * CHUNK ? end - r : 2 * CHUNK;
        for (long m = 0; m < n; m += 2) {
            const bool both = m + 1 < n;
            const float *d_m = d + (r + m) * outputs, *x_m = x + (r + m) * inputs;
            pair_rows(d_m, both ? d_m + outputs : nullptr, outputs, d_two + m / 2 * columns);
            pair_rows(x_m, both ? x_m + inputs : nullptr, inputs, x_two + m / 2 * inputs);
            for (long i = 0; i < 1 + both; i++, d_m += outputs) {
                round_row(d_m, outputs, d_row + (m + i) * O);
                for (long j = 0; j < outputs; j += WIDTH) store(d_b + j, load(d_b + j) + load(d_m + j));
            }
        }
        if (d_x) product<2>(n, inputs, O, d_row, O, 1, to_x, wide, O * wide, d_x + r * inputs, inputs, false);
        product<2>(inputs, outputs, (n + 1) / 2, x_two, 1, inputs, d_two, columns, wide, d_w, outputs, true);
    }
    std::free(d_row);
    return true;
}

extern "C" {

// y [rows, outputs] = x [rows, inputs] w^T + bias, with w [outputs, inputs]; the rows are shared by so many
// threads, which changes no bit.  Returns 0, or 1 without memory.
int linear_bf16_forward(long threads, long rows, long inputs, long outputs, const float *x, const float *w,
                        const float *bias, float *y) {
    const long I = inputs / 2, wide = 2 * WIDTH, span = (outputs + wide - 1) / wide * wide, block = 64;
    pair *packed = memory(span * I + threads * block * I + I);
    if (!packed) return 1;
    pair *rounded_x = packed + span * I, *line = rounded_x + threads * block * I;
    for (long o = 0; o < outputs; o++) {
        round_row(w + o * inputs, inputs, line);
        pair *to = packed + (o / wide) * I * wide + o % wide;
        for (long k = 0; k < I; k++) to[k * wide] = line[k];
    }
    share(threads, rows, [&](long part, long begin, long end) {
        pair *xb = rounded_x + part * block * I;
        for (long r = begin; r < end; r += block) {
            const long n = end - r < block ? end - r : block;
            for (long m = 0; m < n; m++) {
                round_row(x + (r + m) * inputs, inputs, xb + m * I);
                std::memcpy(y + (r + m) * outputs, bias, outputs * sizeof(float));
            }
            product<2>(n, outputs, I, xb, I, 1, packed, wide, I * wide, y + r * outputs, outputs, true);
        }
    });
    std::free(packed);
    return 0;
}

// d [rows, outputs] of y -> d_x [rows, inputs] or null; d_w [threads, inputs, outputs] and d_b [threads, outputs],
// in zeros: sums over each thread's rows.
int linear_bf16_backward(long threads, long rows, long inputs, long outputs, const float *x, const float *w,
                         const float *d, float *d_x, float *d_w, float *d_b) {
    const long O = outputs / 2, wide = 2 * WIDTH, span = (inputs + wide - 1) / wide * wide;
    pair *to_x = memory(O * span);
    if (!to_x) return 1;
    const vec none = {};
    for (long k = 0; k < O; k++)
        for (long j = 0; j < span; j += WIDTH) {
            const float *low = w + 2 * k * inputs + j;
            pair *to = to_x + (j / wide) * O * wide + k * wide + j % wide;
            _mm512_storeu_si512(to, j < inputs ? paired(load(low), load(low + inputs)) : paired(none, none));
        }
    std::atomic<bool> done{true};
    share(threads, rows, [&](long part, long begin, long end) {
        float *own_w = d_w + part * inputs * outputs, *own_b = d_b + part * outputs;
        if (!linear_part(inputs, outputs, begin, end, x, d, to_x, d_x, own_w, own_b)) done = false;
    });
    std::free(to_x);
    return !done;
}
}

#endif
