// The GRU of gru.cpp with products of bfloat16 (``pairs.h``): inputs, states, weights and gradients
// of the gates are rounded where they are multiplied; states, gates and sums are float32.

#include "pairs.h"

#if HAS_PAIRS

struct Step {
    long inputs, units;  // pairs of an input row, units
    const float *bias_ih, *bias_hh;
    const pair *packed;
};

template <int M>
static void forward_tile(const Step &f, long j, const pair *x, const pair *hb, const float *h, float *out, float *gates) {
    const long U = f.units, I = f.inputs;
    const pair *w = f.packed + (j / WIDTH) * (I + U / 2) * 3 * WIDTH;
    const vec br = load(f.bias_ih + j) + load(f.bias_hh + j);
    const vec bz = load(f.bias_ih + U + j) + load(f.bias_hh + U + j);
    const vec bn = load(f.bias_ih + 2 * U + j), bc = load(f.bias_hh + 2 * U + j);
    vec acc[M][3], candidate[M];
    UNROLL for (int m = 0; m < M; m++) {
        acc[m][0] = br;
        acc[m][1] = bz;
        acc[m][2] = bn;
    }
    multiply<M, 3>(acc, x, I, 1, w, 3 * WIDTH, I);
    UNROLL for (int m = 0; m < M; m++) {
        candidate[m] = acc[m][2];
        acc[m][2] = bc;
    }
    multiply<M, 3>(acc, hb, U / 2, 1, w + I * 3 * WIDTH, 3 * WIDTH, U / 2);
    for (int m = 0; m < M; m++) {
        vec r = sigmoid(acc[m][0]), z = sigmoid(acc[m][1]), c = acc[m][2];
        vec n = tanhv(candidate[m] + r * c);
        store(out + m * U + j, n + z * (load(h + m * U + j) - n));
        if (gates) {
            float *g = gates + m * 4 * U + j;
            store(g, r);
            store(g + U, z);
            store(g + 2 * U, n);
            store(g + 3 * U, c);
        }
    }
}

template <int M>
static void forward_rows(const Step &f, long j, const pair *x, const pair *hb, const float *h, float *out, float *gates, long rows) {
    if (rows >= M) forward_tile<M>(f, j, x, hb, h, out, gates);
    else if constexpr (M > 1) forward_rows<M - 1>(f, j, x, hb, h, out, gates, rows);
}

struct Window {
    long steps, batch, inputs, units;
    const float *x, *keep;
};

// Rows begin .. end of the batch, over all steps.  False without memory.
static bool forward_part(const Window &v, const Step &f, long begin, long end, float *states, float *previous, float *gates) {
    const long U = v.units, I = f.inputs, H = U / 2, row = v.batch * U, rows = end - begin;
    pair *xb = memory(rows * (I + H));
    if (!xb) return false;
    pair *hb = xb + rows * I;
    for (long t = 0; t < v.steps; t++) {
        const float *h = states + t * row + begin * U;
        const long at = t * v.batch + begin;
        if (v.keep) {
            float *masked = previous + t * row + begin * U;
            for (long m = 0; m < rows; m++)
                for (long j = 0; j < U; j++) masked[m * U + j] = v.keep[at + m] * h[m * U + j];
            h = masked;
        }
        for (long m = 0; m < rows; m++) {
            round_row(v.x + (at + m) * v.inputs, v.inputs, xb + m * I);
            round_row(h + m * U, U, hb + m * H);
        }
        float *out = states + (t + 1) * row + begin * U;
        for (long j = 0; j < U; j += WIDTH)
            for (long m = 0; m < rows; m += ROWS)
                forward_rows<ROWS>(f, j, xb + m * I, hb + m * H, h + m * U, out + m * U,
                                   gates ? gates + (at + m) * 4 * U : nullptr, rows - m);
    }
    std::free(xb);
    return true;
}

// Of the weights, by blocks of two vectors of columns: pairs of rows in the order of d (c, r, z and r, z, n).
struct Backward {
    const pair *to_h, *to_x;
    const float *grad, *gates, *previous;
    float *d_x, *dh;
};

// Rows begin .. end of the batch, from the last step to the first; the sums over rows are this part's own.
static bool backward_part(const Window &v, const Backward &b, long begin, long end, float *d_w_ih, float *d_w_hh, float *d_sum) {
    const long U = v.units, I = padded(v.inputs), row = v.batch * U, rows = end - begin, twos = (rows + 1) / 2;
    const long half = 3 * U / 2, wide = 2 * WIDTH, room = twos > CHUNK ? twos : long(CHUNK);
    pair *d_row = memory(rows * 2 * U + room * (4 * U + U + I));
    if (!d_row) return false;
    pair *d_two = d_row + rows * 2 * U, *h_two = d_two + room * 4 * U, *x_two = h_two + room * U;
    float *dh = b.dh + begin * U;
    long waiting = 0;
    for (long t = v.steps - 1; t >= 0; t--) {
        const long at = t * v.batch + begin;
        const float *previous = b.previous + t * row + begin * U, *grad = b.grad + t * row + begin * U;
        for (long m = 0; m < rows; m += 2) {
            const bool both = m + 1 < rows;
            pair *two = d_two + (waiting + m / 2) * 4 * U;
            for (long j = 0; j < U; j += WIDTH) {
                vec part[2][4] = {};
                for (long i = m; i < m + 1 + both; i++) {
                    const float *gate = b.gates + (at + i) * 4 * U + j;
                    const vec r = load(gate), z = load(gate + U), n = load(gate + 2 * U), c = load(gate + 3 * U);
                    const vec h = load(previous + i * U + j);
                    const vec g = load(dh + i * U + j) + load(grad + i * U + j);
                    const vec dn = g * (1.0f - z) * (1.0f - n * n);
                    vec *own = part[i - m];
                    own[0] = dn * r;
                    own[1] = dn * c * r * (1.0f - r);
                    own[2] = g * (h - n) * z * (1.0f - z);
                    own[3] = dn;
                    store(dh + i * U + j, g * z);
                    UNROLL for (int k = 0; k < 4; k++)
                        _mm256_storeu_si256((__m256i *)(d_row + i * 2 * U + (k * U + j) / 2), rounded(own[k]));
                }
                UNROLL for (int k = 0; k < 4; k++) {
                    _mm512_storeu_si512(two + k * U + j, paired(part[0][k], part[1][k]));
                    store(d_sum + k * U + j, load(d_sum + k * U + j) + (part[0][k] + part[1][k]));
                }
            }
            const float *h = previous + m * U, *in = v.x + (at + m) * v.inputs;
            pair_rows(h, both ? h + U : nullptr, U, h_two + (waiting + m / 2) * U);
            pair_rows(in, both ? in + v.inputs : nullptr, v.inputs, x_two + (waiting + m / 2) * I);
        }
        waiting += twos;
        product<2>(rows, U, half, d_row, 2 * U, 1, b.to_h, wide, half * wide, dh, U, true);
        if (b.d_x)
            product<2>(rows, v.inputs, half, d_row + U / 2, 2 * U, 1, b.to_x, wide, half * wide,
                       b.d_x + at * v.inputs, v.inputs, false);
        if (v.keep)
            for (long m = 0; m < rows; m++)
                for (long j = 0; j < U; j++) dh[m * U + j] *= v.keep[at + m];
        if (t == 0 || waiting + twos > room) {
            product<3>(U, 3 * U, waiting, h_two, 1, U, d_two, 4 * U, 3 * WIDTH, d_w_hh, 3 * U, true);
            product<3>(v.inputs, 3 * U, waiting, x_two, 1, I, d_two + U, 4 * U, 3 * WIDTH, d_w_ih, 3 * U, true);
            waiting = 0;
        }
    }
    std::free(d_row);
    return true;
}

extern "C" {

// Arrays as in gru_forward; the batch is shared by so many threads, which changes no bit.
int gru_bf16_forward(long threads, long steps, long batch, long inputs, long units, const float *x, const float *keep,
                     const float *w_ih, const float *w_hh, const float *b_ih, const float *b_hh,
                     float *states, float *previous, float *gates) {
    const long I = padded(inputs) / 2, depth = I + units / 2;
    pair *packed = memory((3 * units + 1) * depth);
    if (!packed) return 1;
    pair *line = packed + units * depth * 3;
    for (long u = 0; u < 3 * units; u++) {
        const long gate = u / units, unit = u % units;
        round_row(w_ih + u * inputs, inputs, line);
        round_row(w_hh + u * units, units, line + I);
        pair *to = packed + (unit / WIDTH) * depth * 3 * WIDTH + gate * WIDTH + unit % WIDTH;
        for (long k = 0; k < depth; k++) to[k * 3 * WIDTH] = line[k];
    }
    const Window v = {steps, batch, inputs, units, x, keep};
    const Step f = {I, units, b_ih, b_hh, packed};
    std::atomic<bool> done{true};
    share(threads, batch, [&](long, long begin, long end) {
        if (!forward_part(v, f, begin, end, states, previous, gates)) done = false;
    });
    std::free(packed);
    return !done;
}

// Arrays as in gru_backward, and the products that follow it:
//   x [steps, batch, inputs]   d_x the same, or null   d_w_ih [threads, inputs, 3 units]: r, z, n, in zeros
//   d_w_hh [threads, units, 3 units]: c, r, z, in zeros   d_sum [threads, 4 units], in zeros
int gru_bf16_backward(long threads, long steps, long batch, long inputs, long units, const float *grad,
                      const float *keep, const float *x, const float *w_ih, const float *w_hh, const float *gates,
                      const float *previous, float *d_x, float *d_w_ih, float *d_w_hh, float *d_sum, float *dh) {
    const long U = units, half = 3 * U / 2, wide = 2 * WIDTH;
    const long span = (U + wide - 1) / wide * wide, inputs_span = (inputs + wide - 1) / wide * wide;
    pair *to_h = memory(half * (span + inputs_span));
    if (!to_h) return 1;
    pair *to_x = to_h + half * span;
    const vec none = {};
    for (long k = 0; k < half; k++) {
        for (long j = 0; j < span; j += WIDTH) {
            const float *low = w_hh + ((2 * k + 2 * U) % (3 * U)) * U + j;
            pair *to = to_h + (j / wide) * half * wide + k * wide + j % wide;
            _mm512_storeu_si512(to, j < U ? paired(load(low), load(low + U)) : paired(none, none));
        }
        for (long j = 0; j < inputs_span; j += WIDTH) {
            const float *low = w_ih + 2 * k * inputs + j;
            pair *to = to_x + (j / wide) * half * wide + k * wide + j % wide;
            const long left = inputs - j;
            if (left >= WIDTH) _mm512_storeu_si512(to, paired(load(low), load(low + inputs)));
            else if (left > 0) _mm512_storeu_si512(to, paired(head(low, left), head(low + inputs, left)));
            else _mm512_storeu_si512(to, paired(none, none));
        }
    }
    const Window v = {steps, batch, inputs, units, x, keep};
    const Backward b = {to_h, to_x, grad, gates, previous, d_x, dh};
    std::atomic<bool> done{true};
    share(threads, batch, [&](long part, long begin, long end) {
        float *ih = d_w_ih + part * inputs * 3 * U, *hh = d_w_hh + part * U * 3 * U;
        if (!backward_part(v, b, begin, end, ih, hh, d_sum + part * 4 * U)) done = false;
    });
    std::free(to_h);
    return !done;
}
}

#endif
