// A GRU unrolled over a window, forward and backward, on one core.
//
// Why it exists: at the sizes of this package (a batch of 8 to 64, 128 units) a step is one small
// multiplication and a handful of element-wise operations, and a third of the time of a general
// library goes into passing arrays through memory between them.  Here a block of units stays in
// registers from the multiplication to the new state.
//
// All arrays are row-major float32.  Gates are in the order of torch: reset, update, candidate.
//   r = s(Wr x + Ur h + br)   z = s(Wz x + Uz h + bz)   c = Un h + bhn
//   n = tanh(Wn x + bn + r c)   h' = n + z (h - n)
// Units must be a multiple of WIDTH (``gru_width``); batch, inputs and steps are free.

#include "vectors.h"

// acc[m][g] += a[m][k] * w[k][g], for M rows and G vectors of columns, over `depth` values of k.
template <int M, int G>
static inline void multiply(vec (&acc)[M][G], const float *a, long stride, const float *w, long depth) {
    for (long k = 0; k < depth; k++, w += G * WIDTH) {
        vec column[G];
        UNROLL for (int g = 0; g < G; g++) column[g] = load(w + g * WIDTH);
        UNROLL for (int m = 0; m < M; m++) {
            vec s = all(a[m * stride + k]);
            UNROLL for (int g = 0; g < G; g++) acc[m][g] += s * column[g];
        }
    }
}

struct Forward {
    long steps, batch, inputs, units;
    const float *bias_ih, *bias_hh, *packed;
    float *gates;  // [steps, batch, 4 units]: r, z, n, c; null: not kept
};

// One step of M batch rows and one block of units.
template <int M>
static void forward_tile(const Forward &f, long j, const float *x, const float *h, float *out, float *gates) {
    const long U = f.units, I = f.inputs;
    const float *w = f.packed + (j / WIDTH) * (I + U) * 3 * WIDTH;
    const vec br = load(f.bias_ih + j) + load(f.bias_hh + j);
    const vec bz = load(f.bias_ih + U + j) + load(f.bias_hh + U + j);
    const vec bn = load(f.bias_ih + 2 * U + j), bc = load(f.bias_hh + 2 * U + j);
    vec acc[M][3], candidate[M];
    UNROLL for (int m = 0; m < M; m++) {
        acc[m][0] = br;
        acc[m][1] = bz;
        acc[m][2] = bn;
    }
    multiply<M, 3>(acc, x, I, w, I);
    UNROLL for (int m = 0; m < M; m++) {
        candidate[m] = acc[m][2];
        acc[m][2] = bc;
    }
    multiply<M, 3>(acc, h, U, w + I * 3 * WIDTH, U);
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
static void forward_rows(const Forward &f, long j, const float *x, const float *h, float *out, float *gates, long rows) {
    if (rows >= M) {
        forward_tile<M>(f, j, x, h, out, gates);
    } else if constexpr (M > 1) {
        forward_rows<M - 1>(f, j, x, h, out, gates, rows);
    }
}

// dh[m][columns] += d[m][depth] times a packed block of the recurrent weights, for M rows.
template <int M, int G>
static void backward_tile(long units, long depth, const float *w, const float *d, float *dh) {
    vec acc[M][G];
    UNROLL for (int m = 0; m < M; m++) {
        UNROLL for (int g = 0; g < G; g++) acc[m][g] = load(dh + m * units + g * WIDTH);
    }
    multiply<M, G>(acc, d, 4 * units, w, depth);
    UNROLL for (int m = 0; m < M; m++) {
        UNROLL for (int g = 0; g < G; g++) store(dh + m * units + g * WIDTH, acc[m][g]);
    }
}

template <int M, int G>
static void backward_rows(long units, long depth, const float *w, const float *d, float *dh, long rows) {
    if (rows >= M) {
        backward_tile<M, G>(units, depth, w, d, dh);
    } else if constexpr (M > 1) {
        backward_rows<M - 1, G>(units, depth, w, d, dh, rows);
    }
}

extern "C" {

int gru_width(void) { return WIDTH; }

// states[0] holds the state before step 0; writes states[1 .. steps].
//   x [steps, batch, inputs]  keep [steps, batch] or null  w_ih [3 units, inputs]  w_hh [3 units, units]
//   states [steps + 1, batch, units]  previous [steps, batch, units]: keep * state (only with keep)
//   gates [steps, batch, 4 units] or null.  Returns 0, or 1 without memory.
int gru_forward(long steps, long batch, long inputs, long units, const float *x, const float *keep,
                const float *w_ih, const float *w_hh, const float *b_ih, const float *b_hh,
                float *states, float *previous, float *gates) {
    const long depth = inputs + units, blocks = units / WIDTH, row = batch * units;
    float *packed = static_cast<float *>(std::aligned_alloc(64, units * depth * 3 * sizeof(float)));
    if (!packed) return 1;
    for (long b = 0; b < blocks; b++)
        for (long g = 0; g < 3; g++)
            for (long i = 0; i < WIDTH; i++) {
                const long unit = g * units + b * WIDTH + i;
                float *to = packed + b * depth * 3 * WIDTH + g * WIDTH + i;
                for (long k = 0; k < inputs; k++) to[k * 3 * WIDTH] = w_ih[unit * inputs + k];
                to += inputs * 3 * WIDTH;
                for (long k = 0; k < units; k++) to[k * 3 * WIDTH] = w_hh[unit * units + k];
            }
    const Forward f = {steps, batch, inputs, units, b_ih, b_hh, packed, gates};
    for (long t = 0; t < steps; t++) {
        const float *h = states + t * row;
        if (keep) {
            float *masked = previous + t * row;
            for (long m = 0; m < batch; m++)
                for (long j = 0; j < units; j++) masked[m * units + j] = keep[t * batch + m] * h[m * units + j];
            h = masked;
        }
        float *out = states + (t + 1) * row;
        for (long j = 0; j < units; j += WIDTH)
            for (long m = 0; m < batch; m += ROWS)
                forward_rows<ROWS>(f, j, x + (t * batch + m) * inputs, h + m * units, out + m * units,
                                   gates ? gates + (t * batch + m) * 4 * units : nullptr, batch - m);
    }
    std::free(packed);
    return 0;
}

// The chain rule, from the last step to the first.
//   grad [steps, batch, units]: of each state from outside   keep, gates as above
//   previous [steps, batch, units]: the state before each step, resets applied
//   d [steps, batch, 4 units]: of the pre-activations, in the order c, r, z, n
//   d_sum [4 units]: d summed over steps and batch   dh [batch, units]: in zeros, out d of states[0]
int gru_backward(long steps, long batch, long units, const float *grad, const float *keep, const float *w_hh,
                 const float *gates, const float *previous, float *d, float *d_sum, float *dh) {
    const long U = units, row = batch * U;
    float *packed = static_cast<float *>(std::aligned_alloc(64, U * U * 3 * sizeof(float)));
    if (!packed) return 1;
    // Columns in pairs of vectors (the last one alone where they are odd); rows in the order c, r, z.
    for (long j = 0; j < U;) {
        const long wide = j + 2 * WIDTH <= U ? 2 * WIDTH : WIDTH;
        float *to = packed + j * 3 * U;
        for (long k = 0; k < 3 * U; k++)
            std::memcpy(to + k * wide, w_hh + ((k + 2 * U) % (3 * U)) * U + j, wide * sizeof(float));
        j += wide;
    }
    for (long t = steps - 1; t >= 0; t--) {
        float *d_t = d + t * batch * 4 * U;
        for (long m = 0; m < batch; m++) {
            for (long j = 0; j < U; j += WIDTH) {
                const float *gate = gates + (t * batch + m) * 4 * U + j;
                const vec r = load(gate), z = load(gate + U), n = load(gate + 2 * U), c = load(gate + 3 * U);
                const vec h = load(previous + t * row + m * U + j);
                const vec g = load(dh + m * U + j) + load(grad + t * row + m * U + j);
                const vec dn = g * (1.0f - z) * (1.0f - n * n);
                const vec part[4] = {dn * r, dn * c * r * (1.0f - r), g * (h - n) * z * (1.0f - z), dn};
                UNROLL for (int k = 0; k < 4; k++) {
                    store(d_t + m * 4 * U + k * U + j, part[k]);
                    store(d_sum + k * U + j, load(d_sum + k * U + j) + part[k]);
                }
                store(dh + m * U + j, g * z);
            }
        }
        // A gate's share of a column block is small enough to stay close for all rows of the batch.
        for (long j = 0; j < U;) {
            const bool pair = j + 2 * WIDTH <= U;
            const long wide = pair ? 2 * WIDTH : WIDTH;
            for (long gate = 0; gate < 3; gate++) {
                const float *w = packed + j * 3 * U + gate * U * wide;
                for (long m = 0; m < batch; m += ROWS) {
                    const float *d_m = d_t + m * 4 * U + gate * U;
                    float *dh_m = dh + m * U + j;
                    if (pair) backward_rows<ROWS, 2>(U, U, w, d_m, dh_m, batch - m);
                    else backward_rows<ROWS, 1>(U, U, w, d_m, dh_m, batch - m);
                }
            }
            j += wide;
        }
        if (keep)
            for (long m = 0; m < batch; m++)
                for (long j = 0; j < U; j++) dh[m * U + j] *= keep[t * batch + m];
    }
    std::free(packed);
    return 0;
}
}
