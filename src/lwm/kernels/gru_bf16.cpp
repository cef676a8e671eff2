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

extern "C" {

// Arrays as in gru_forward.
int gru_bf16_forward(long steps, long batch, long inputs, long units, const float *x, const float *keep,
                     const float *w_ih, const float *w_hh, const float *b_ih, const float *b_hh,
                     float *states, float *previous, float *gates) {
    const long I = padded(inputs) / 2, H = units / 2, depth = I + H, row = batch * units;
    pair *packed = memory(units * depth * 3 + batch * depth + depth);
    if (!packed) return 1;
    pair *xb = packed + units * depth * 3, *hb = xb + batch * I, *line = hb + batch * H;
    for (long u = 0; u < 3 * units; u++) {
        const long gate = u / units, unit = u % units;
        round_row(w_ih + u * inputs, inputs, line);
        round_row(w_hh + u * units, units, line + I);
        pair *to = packed + (unit / WIDTH) * depth * 3 * WIDTH + gate * WIDTH + unit % WIDTH;
        for (long k = 0; k < depth; k++) to[k * 3 * WIDTH] = line[k];
    }
    const Step f = {I, units, b_ih, b_hh, packed};
    for (long t = 0; t < steps; t++) {
        const float *h = states + t * row;
        if (keep) {
            float *masked = previous + t * row;
            for (long m = 0; m < batch; m++)
                for (long j = 0; j < units; j++) masked[m * units + j] = keep[t * batch + m] * h[m * units + j];
            h = masked;
        }
        for (long m = 0; m < batch; m++) {
            round_row(x + (t * batch + m) * inputs, inputs, xb + m * I);
            round_row(h + m * units, units, hb + m * H);
        }
        float *out = states + (t + 1) * row;
        for (long j = 0; j < units; j += WIDTH)
            for (long m = 0; m < batch; m += ROWS)
                forward_rows<ROWS>(f, j, xb + m * I, hb + m * H, h + m * units, out + m * units,
                                   gates ? gates + (t * batch + m) * 4 * units : nullptr, batch - m);
    }
    std::free(packed);
    return 0;
}

// Arrays as in gru_backward, and the products that follow it:
//   x [steps, batch, inputs]   d_x the same, or null   d_w_ih [inputs, 3 units]: r, z, n, in zeros
//   d_w_hh [units, 3 units]: c, r, z, in zeros
int gru_bf16_backward(long steps, long batch, long inputs, long units, const float *grad, const float *keep,
                      const float *x, const float *w_ih, const float *w_hh, const float *gates,
                      const float *previous, float *d_x, float *d_w_ih, float *d_w_hh, float *d_sum, float *dh) {
    const long U = units, I = padded(inputs), row = batch * U, twos = (batch + 1) / 2;
    const long wide = 2 * WIDTH, span = (U + wide - 1) / wide * wide, ispan = (I + wide - 1) / wide * wide;
    const long half = 3 * U / 2, room = twos > CHUNK ? twos : long(CHUNK);
    pair *to_h = memory(half * (span + ispan) + batch * 2 * U + room * (4 * U + U + I));
    if (!to_h) return 1;
    pair *to_x = to_h + half * span, *d_row = to_x + half * ispan, *d_two = d_row + batch * 2 * U,
         *h_two = d_two + room * 4 * U, *x_two = h_two + room * U;
    // Weights by blocks of two vectors of columns; pairs of rows in the order of d.
    const vec none = {};
    for (long k = 0; k < half; k++) {
        for (long j = 0; j < span; j += WIDTH) {
            const float *low = w_hh + ((2 * k + 2 * U) % (3 * U)) * U + j;
            pair *to = to_h + (j / wide) * half * wide + k * wide + j % wide;
            _mm512_storeu_si512(to, j < U ? paired(load(low), load(low + U)) : paired(none, none));
        }
        for (long j = 0; j < ispan; j += WIDTH) {
            const float *low = w_ih + 2 * k * inputs + j;
            pair *to = to_x + (j / wide) * half * wide + k * wide + j % wide;
            const long left = inputs - j;
            if (left >= WIDTH) _mm512_storeu_si512(to, paired(load(low), load(low + inputs)));
            else if (left > 0) _mm512_storeu_si512(to, paired(head(low, left), head(low + inputs, left)));
            else _mm512_storeu_si512(to, paired(none, none));
        }
    }
    long waiting = 0;
    for (long t = steps - 1; t >= 0; t--) {
        for (long m = 0; m < batch; m += 2) {
            const bool both = m + 1 < batch;
            pair *two = d_two + (waiting + m / 2) * 4 * U;
            for (long j = 0; j < U; j += WIDTH) {
                vec part[2][4] = {};
                for (long i = 0; i < 1 + both; i++) {
                    const long at = m + i;
                    const float *gate = gates + (t * batch + at) * 4 * U + j;
                    const vec r = load(gate), z = load(gate + U), n = load(gate + 2 * U), c = load(gate + 3 * U);
                    const vec h = load(previous + t * row + at * U + j);
                    const vec g = load(dh + at * U + j) + load(grad + t * row + at * U + j);
                    const vec dn = g * (1.0f - z) * (1.0f - n * n);
                    part[i][0] = dn * r;
                    part[i][1] = dn * c * r * (1.0f - r);
                    part[i][2] = g * (h - n) * z * (1.0f - z);
                    part[i][3] = dn;
                    store(dh + at * U + j, g * z);
                    UNROLL for (int k = 0; k < 4; k++)
                        _mm256_storeu_si256((__m256i *)(d_row + at * 2 * U + (k * U + j) / 2), rounded(part[i][k]));
                }
                UNROLL for (int k = 0; k < 4; k++) {
                    _mm512_storeu_si512(two + k * U + j, paired(part[0][k], part[1][k]));
                    store(d_sum + k * U + j, load(d_sum + k * U + j) + (part[0][k] + part[1][k]));
                }
            }
            pair_rows(previous + t * row + m * U, both ? previous + t * row + (m + 1) * U : nullptr, U, h_two + (waiting + m / 2) * U);
            const float *in = x + (t * batch + m) * inputs;
            pair_rows(in, both ? in + inputs : nullptr, inputs, x_two + (waiting + m / 2) * I);
        }
        waiting += twos;
        product<2>(batch, U, half, d_row, 2 * U, 1, to_h, wide, half * wide, dh, U, true);
        if (d_x) product<2>(batch, inputs, half, d_row + U / 2, 2 * U, 1, to_x, wide, half * wide, d_x + t * batch * inputs, inputs, false);
        if (keep)
            for (long m = 0; m < batch; m++)
                for (long j = 0; j < U; j++) dh[m * U + j] *= keep[t * batch + m];
        if (t == 0 || waiting + twos > room) {
            product<3>(U, 3 * U, waiting, h_two, 1, U, d_two, 4 * U, 3 * WIDTH, d_w_hh, 3 * U, true);
            product<3>(inputs, 3 * U, waiting, x_two, 1, I, d_two + U, 4 * U, 3 * WIDTH, d_w_ih, 3 * U, true);
            waiting = 0;
        }
    }
    std::free(to_h);
    return 0;
}
}

#endif
