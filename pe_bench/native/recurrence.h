// Layers without softmax: every head keeps a matrix S [width, value_width], its state, which each token decays,
// corrects and reads, in float32.
//
//   S <- diag(e^g) S,    u = b (v - S^T k), or v without a correction,    S <- S + k u^T,    o = S^T q
//
// Columns of the state do not depend on each other, so each group of columns is taken through all tokens while it
// stays in the processor's nearest memory. The backward pass starts from states that the forward pass has kept, one
// every `CHUNK` tokens, and computes those between them again. One thread does a head of a batch from its beginning
// to its end, so results do not depend on the number of threads.
//
// A row of a matrix belongs to a feature of the keys, and a column to a feature of the values.
#pragma once

#include "layers.h"

namespace {

// The inputs of a recurrence, or their gradients. `log_decay` has one number for each token and row, or one for each
// token (`decays` is 1). `strength` has one for each token, or is null, and then nothing is corrected.
struct Recurrence {
    const Strided<float>*q, *k, *v, *log_decay, *strength;
    int64_t decays;
};

inline float* row_of(const Strided<float>* x, int64_t b, int64_t h, int64_t t) {
    return x->data + b * x->batch + h * x->heads + t * x->tokens;
}

// The sum of a vector's lanes by halves, which takes fewer steps than one lane after the other.
inline float folded(floats value) {
    typedef float quarter __attribute__((vector_size(16)));
    constexpr int PARTS = LANES / 4;
    quarter parts[PARTS];
    std::memcpy(parts, &value, sizeof value);
    for (int half = PARTS / 2; half > 0; half /= 2)
        for (int n = 0; n < half; ++n) parts[n] += parts[n + half];
    return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

// A group of columns, in V vectors.
template <int V>
struct Columns {
    static constexpr int VECTORS = V;
    static constexpr int64_t WIDTH = V * LANES;
    int64_t first, count;

    void read(const float* row, floats* to) const {
        for (int n = 0; n < V; ++n) to[n] = load(row + first + n * LANES, lanes(n));
    }
    void write(float* row, const floats* from) const {
        for (int n = 0; n < V; ++n) store(row + first + n * LANES, from[n], lanes(n));
    }

   private:
    int64_t lanes(int n) const { return std::clamp<int64_t>(count - n * LANES, 0, LANES); }
};

constexpr int MOST_VECTORS = 4;  // of a group

template <class Visit>
void each_group(int64_t width, Visit visit) {
    for (int64_t first = 0; first < width; first += MOST_VECTORS * LANES) {
        const int64_t count = std::min<int64_t>(width - first, MOST_VECTORS * LANES);
        if (count > 2 * LANES)
            visit(Columns<MOST_VECTORS>{first, count});
        else if (count > LANES)
            visit(Columns<2>{first, count});
        else
            visit(Columns<1>{first, count});
    }
}

class RecurrencePass {
   public:
    explicit RecurrencePass(const Shape& shape)
        : width(shape.width),
          state(width * MOST_VECTORS * LANES),
          state_gradient(width * MOST_VECTORS * LANES),
          decayed(CHUNK * width * MOST_VECTORS * LANES),
          error(CHUNK * MOST_VECTORS * LANES),
          added(CHUNK * MOST_VECTORS * LANES),
          decays(CHUNK * width) {}

    // Writes the outputs, and where `states` [batch, heads, chunks, width, value_width] is not null, the state before
    // each chunk.
    void forward(const Shape& shape, const Recurrence& inputs, const Strided<float>& out, float* states, int64_t b,
                 int64_t h) {
        each_group(shape.value_width, [&](auto columns) {
            constexpr int V = decltype(columns)::VECTORS;
            std::fill_n(state.at(0), width * columns.WIDTH, 0.0f);
            for (int64_t t = 0; t < shape.tokens; ++t) {
                if (states != nullptr && t % CHUNK == 0) keep(shape, columns, states, b, h, t / CHUNK);
                write_token(inputs, columns, b, h, t, 0);
                const float* q = row_of(inputs.q, b, h, t);
                floats read[V]{};
                for (int64_t c = 0; c < width; ++c)
                    for (int n = 0; n < V; ++n) read[n] += q[c] * load(state.at((c * V + n) * LANES));
                columns.write(row_of(&out, b, h, t), read);
            }
        });
    }

    // Adds to the gradients of the inputs, which are 0 before; `slope` is the gradient of the outputs.
    void backward(const Shape& shape, const Recurrence& inputs, const Strided<float>& slope, const float* states,
                  const Recurrence& gradients, int64_t b, int64_t h) {
        each_group(shape.value_width, [&](auto columns) {
            std::fill_n(state_gradient.at(0), width * columns.WIDTH, 0.0f);
            for (int64_t chunk = chunks_of(shape.tokens) - 1; chunk >= 0; --chunk) {
                const int64_t first = chunk * CHUNK, last = std::min(shape.tokens, first + CHUNK);
                take_back(shape, columns, states, b, h, chunk);
                for (int64_t t = first; t < last; ++t) write_token(inputs, columns, b, h, t, t - first);
                for (int64_t t = last - 1; t >= first; --t)
                    token_backward(inputs, slope, columns, gradients, b, h, t, t - first);
            }
        });
    }

   private:
    // Takes a group of the state's columns through a token, and keeps in `slot` what the backward pass needs of it.
    template <int V>
    void write_token(const Recurrence& inputs, const Columns<V>& columns, int64_t b, int64_t h, int64_t t,
                     int64_t slot) {
        const float* k = row_of(inputs.k, b, h, t);
        const float* decay = decays.at(slot * width);
        take_decays(row_of(inputs.log_decay, b, h, t), inputs.decays, decays.at(slot * width));
        float* to = decayed.at(slot * width * columns.WIDTH);
        floats value[V], recalled[V]{};
        columns.read(row_of(inputs.v, b, h, t), value);
        for (int64_t c = 0; c < width; ++c)
            for (int n = 0; n < V; ++n) {
                const floats row = decay[c] * load(state.at((c * V + n) * LANES));
                store(to + (c * V + n) * LANES, row);
                recalled[n] += k[c] * row;
            }
        for (int n = 0; n < V; ++n) {
            if (inputs.strength != nullptr) {
                const floats difference = value[n] - recalled[n];
                store(error.at((slot * V + n) * LANES), difference);
                value[n] = *row_of(inputs.strength, b, h, t) * difference;
            }
            store(added.at((slot * V + n) * LANES), value[n]);
        }
        for (int64_t c = 0; c < width; ++c)
            for (int n = 0; n < V; ++n)
                store(state.at((c * V + n) * LANES), load(to + (c * V + n) * LANES) + k[c] * value[n]);
    }

    // Takes the gradient of a group of the state's columns back through a token that `write_token` has kept in `slot`.
    template <int V>
    void token_backward(const Recurrence& inputs, const Strided<float>& slope, const Columns<V>& columns,
                        const Recurrence& gradients, int64_t b, int64_t h, int64_t t, int64_t slot) {
        const float *q = row_of(inputs.q, b, h, t), *k = row_of(inputs.k, b, h, t);
        const float *decay = decays.at(slot * width), *from = decayed.at(slot * width * columns.WIDTH);
        const bool corrects = inputs.strength != nullptr;
        floats read_gradient[V], written[V], written_gradient[V]{}, error_gradient[V]{};
        columns.read(row_of(&slope, b, h, t), read_gradient);
        for (int n = 0; n < V; ++n) written[n] = load(added.at((slot * V + n) * LANES));
        for (int64_t c = 0; c < width; ++c)
            for (int n = 0; n < V; ++n) {
                float* gradient = state_gradient.at((c * V + n) * LANES);
                const floats changed = load(gradient) + q[c] * read_gradient[n];
                store(gradient, changed);
                written_gradient[n] += k[c] * changed;
            }
        floats of_read{}, of_strength{};
        for (int n = 0; n < V; ++n) of_read += written[n] * read_gradient[n];
        const float read_of_key = folded(of_read);
        if (corrects) {
            const float strength = *row_of(inputs.strength, b, h, t);
            for (int n = 0; n < V; ++n) {
                of_strength += written_gradient[n] * load(error.at((slot * V + n) * LANES));
                error_gradient[n] = written_gradient[n] = strength * written_gradient[n];
            }
            *row_of(gradients.strength, b, h, t) += folded(of_strength);
        }
        columns.write(row_of(gradients.v, b, h, t), written_gradient);
        float *of_q = row_of(gradients.q, b, h, t), *of_k = row_of(gradients.k, b, h, t);
        float* of_log_decay = row_of(gradients.log_decay, b, h, t);
        floats of_all_decays{};
        for (int64_t c = 0; c < width; ++c) {
            floats for_q{}, for_k{}, for_decay{};
            for (int n = 0; n < V; ++n) {
                float* gradient = state_gradient.at((c * V + n) * LANES);
                const floats row = load(from + (c * V + n) * LANES), changed = load(gradient);
                for_q += row * read_gradient[n];
                for_k += changed * written[n] - row * error_gradient[n];
                const floats decayed_gradient = changed - k[c] * error_gradient[n];
                for_decay += row * decayed_gradient;
                store(gradient, decay[c] * decayed_gradient);
            }
            of_q[c] += folded(for_q) + k[c] * read_of_key;
            of_k[c] += folded(for_k);
            if (inputs.decays == 1)
                of_all_decays += for_decay;
            else
                of_log_decay[c] += folded(for_decay);
        }
        if (inputs.decays == 1) *of_log_decay += folded(of_all_decays);
    }

    void take_decays(const float* log_decay, int64_t count, float* to) const {
        if (count == 1)
            std::fill_n(to, width, exp_of_nonpositive(all(*log_decay))[0]);
        else
            each_vector(width, [&](int64_t c, int64_t n) {
                store(to + c, exp_of_nonpositive(load(log_decay + c, n)), n);
            });
    }

    template <int V>
    void keep(const Shape& shape, const Columns<V>& columns, float* states, int64_t b, int64_t h, int64_t chunk) const {
        float* to = states + ((b * shape.heads + h) * chunks_of(shape.tokens) + chunk) * width * shape.value_width;
        for (int64_t c = 0; c < width; ++c) {
            floats row[V];
            for (int n = 0; n < V; ++n) row[n] = load(state.at((c * V + n) * LANES));
            columns.write(to + c * shape.value_width, row);
        }
    }

    template <int V>
    void take_back(const Shape& shape, const Columns<V>& columns, const float* states, int64_t b, int64_t h,
                   int64_t chunk) {
        const float* from =
            states + ((b * shape.heads + h) * chunks_of(shape.tokens) + chunk) * width * shape.value_width;
        for (int64_t c = 0; c < width; ++c) {
            floats row[V];
            columns.read(from + c * shape.value_width, row);
            for (int n = 0; n < V; ++n) store(state.at((c * V + n) * LANES), row[n]);
        }
    }

    int64_t width;
    Buffer<float> state, state_gradient;  // of a group of columns: [width, V vectors]
    Buffer<float> decayed;                // the state before a token is added, of each token of a chunk
    Buffer<float> error, added, decays;   // v - S^T k, u and e^g of each token of a chunk
};

}  // namespace

extern "C" {

// Returns 0, or 1 where there was no memory. `states` is written for the backward pass, and null without one.
int pe_bench_recurrence(const Shape* shape, const Strided<float>* q, const Strided<float>* k, const Strided<float>* v,
                        const Strided<float>* log_decay, const Strided<float>* strength, int64_t decays,
                        const Strided<float>* out, float* states) {
    const Recurrence inputs{q, k, v, log_decay, strength, decays};
    return !each_part<RecurrencePass>(*shape, 1, [&](RecurrencePass& pass, int64_t b, int64_t h, Part) {
        pass.forward(*shape, inputs, *out, states, b, h);
    });
}

// The gradients are those of q, k, v, log_decay and strength, filled with zeros.
int pe_bench_recurrence_backward(const Shape* shape, const Strided<float>* q, const Strided<float>* k,
                                 const Strided<float>* v, const Strided<float>* log_decay,
                                 const Strided<float>* strength, int64_t decays, const Strided<float>* slope,
                                 const float* states, const Strided<float>* dq, const Strided<float>* dk,
                                 const Strided<float>* dv, const Strided<float>* of_log_decay,
                                 const Strided<float>* of_strength) {
    const Recurrence inputs{q, k, v, log_decay, strength, decays};
    const Recurrence gradients{dq, dk, dv, of_log_decay, of_strength, decays};
    return !each_part<RecurrencePass>(*shape, 1, [&](RecurrencePass& pass, int64_t b, int64_t h, Part) {
        pass.backward(*shape, inputs, *slope, states, gradients, b, h);
    });
}
}
