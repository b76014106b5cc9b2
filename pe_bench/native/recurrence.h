// Layers without softmax: every head keeps a matrix S [width, value_width], its state, which each token decays,
// corrects and reads, in float32.
//
//   S <- diag(e^g) S,    u = b (v - S^T k), or u = v without a correction,    S <- S + k u^T,    o = S^T q
//
// A row of a state belongs to a feature of the keys, and a column to a feature of the values. Columns do not depend
// on each other, so a group of columns passes through all tokens before the next group does; in the forward pass a
// group of the usual widths fits a first-level cache. The backward pass starts from states that the forward pass has
// saved, one every `TOKENS_PER_STATE` tokens, and computes those between them again.
//
// Results do not depend on the number of threads. The width of a group in the forward pass does, but columns are
// independent. In the backward pass, one thread adds up all groups of a head, in their order.
#pragma once

#include "layers.h"

namespace {

constexpr int64_t TOKENS_PER_STATE = 32;
constexpr int MAX_VECTORS = 4;  // of a group of columns

int64_t saved_states(int64_t tokens) { return (tokens + TOKENS_PER_STATE - 1) / TOKENS_PER_STATE; }

// The inputs of a recurrence, or their gradients. `log_decay`: one number for each row of a token's state, or one for
// each token (`decays_per_token` is 1). `strength`: one number for each token; null: no correction.
struct Recurrence {
    const Strided<float>*q, *k, *v, *log_decay, *strength;
    int64_t decays_per_token;
};

// A token of a head of a batch.
struct Token {
    int64_t b, h, t;
};

inline float* row_of(const Strided<float>* x, const Token& token) {
    return x->data + token.b * x->batch + token.h * x->heads + token.t * x->tokens;
}

// e^x of the log decays of a token, for each row of the state. Positive ones, which no layer here has, are computed as
// 1 / e^-x, up to 87.
void take_decays(const Recurrence& inputs, const Token& token, int64_t width, float* factors) {
    const float* log_decay = row_of(inputs.log_decay, token);
    const auto power = [](floats x) {
        const floats smaller = exp_of_nonpositive(x > 0.0f ? -x : x);
        return x > 0.0f ? 1.0f / smaller : smaller;
    };
    if (inputs.decays_per_token == 1)
        std::fill_n(factors, width, power(all(*log_decay))[0]);
    else
        each_vector(width, [&](int64_t c, int64_t n) { store(factors + c, power(load(log_decay + c, n)), n); });
}

// A group of `count` columns of the states of one head, held in `VECTORS` vectors.
template <int VECTORS>
class Columns {
   public:
    static constexpr int64_t WIDTH = VECTORS * LANES;

    Columns(int64_t first, int64_t count) : first(first), count(count) {}

    void read(const float* row, floats* to) const {
        for (int n = 0; n < VECTORS; ++n) to[n] = load(row + first + n * LANES, lanes(n));
    }

    void write(float* row, const floats* from) const {
        for (int n = 0; n < VECTORS; ++n) store(row + first + n * LANES, from[n], lanes(n));
    }

    // `saved` is [width, value_width], `state` [width, WIDTH].
    void save_state(const float* state, int64_t width, float* saved, int64_t value_width) const {
        floats row[VECTORS];
        for (int64_t c = 0; c < width; ++c) {
            std::memcpy(row, state + c * WIDTH, sizeof row);
            write(saved + c * value_width, row);
        }
    }

    void load_state(const float* saved, int64_t value_width, int64_t width, float* state) const {
        floats row[VECTORS];
        for (int64_t c = 0; c < width; ++c) {
            read(saved + c * value_width, row);
            std::memcpy(state + c * WIDTH, row, sizeof row);
        }
    }

    // Takes the state through a token: `decayed` is the state after its decay and before its update, and may be
    // `state` itself. `update` is u, and with a correction `error` is v - S^T k.
    void write_token(const Recurrence& inputs, const Token& token, int64_t width, const float* factors, float* state,
                     float* decayed, floats* error, floats* update) const {
        const float* k = row_of(inputs.k, token);
        floats recalled[VECTORS]{};
        for (int64_t c = 0; c < width; ++c)
            for (int n = 0; n < VECTORS; ++n) {
                const int64_t place = c * WIDTH + n * LANES;
                const floats row = factors[c] * load(state + place);
                store(decayed + place, row);
                recalled[n] += k[c] * row;
            }
        read(row_of(inputs.v, token), update);
        if (inputs.strength != nullptr) {
            const float strength = *row_of(inputs.strength, token);
            for (int n = 0; n < VECTORS; ++n) {
                error[n] = update[n] - recalled[n];
                update[n] = strength * error[n];
            }
        }
        for (int64_t c = 0; c < width; ++c)
            for (int n = 0; n < VECTORS; ++n) {
                const int64_t place = c * WIDTH + n * LANES;
                store(state + place, load(decayed + place) + k[c] * update[n]);
            }
    }

   private:
    int64_t lanes(int n) const { return std::clamp<int64_t>(count - n * LANES, 0, LANES); }

    int64_t first, count;
};

// Calls `visit` with the group of `count` columns from `first` on.
template <class Visit>
void with_columns(int64_t first, int64_t count, Visit visit) {
    if (count > 2 * LANES)
        visit(Columns<MAX_VECTORS>(first, count));
    else if (count > LANES)
        visit(Columns<2>(first, count));
    else
        visit(Columns<1>(first, count));
}

class ForwardRecurrence {
   public:
    explicit ForwardRecurrence(const Shape& shape) : state(shape.width * MAX_VECTORS * LANES), factors(shape.width) {}

    // Writes some columns of a head's outputs and, where `saved` [states, width, value_width] is not null, of its
    // states.
    template <int VECTORS>
    void head(const Shape& shape, const Recurrence& inputs, const Strided<float>& out, float* saved, int64_t b,
              int64_t h, const Columns<VECTORS>& columns) {
        std::fill_n(state.at(0), shape.width * columns.WIDTH, 0.0f);
        for (Token token{b, h, 0}; token.t < shape.tokens; ++token.t) {
            if (saved != nullptr && token.t % TOKENS_PER_STATE == 0) {
                columns.save_state(state.at(0), shape.width, saved, shape.value_width);
                saved += shape.width * shape.value_width;
            }
            floats error[VECTORS], update[VECTORS], read[VECTORS]{};
            take_decays(inputs, token, shape.width, factors.at(0));
            columns.write_token(inputs, token, shape.width, factors.at(0), state.at(0), state.at(0), error, update);
            const float* q = row_of(inputs.q, token);
            for (int64_t c = 0; c < shape.width; ++c)
                for (int n = 0; n < VECTORS; ++n) read[n] += q[c] * load(state.at(c * columns.WIDTH + n * LANES));
            columns.write(row_of(&out, token), read);
        }
    }

   private:
    Buffer<float> state, factors;
};

class BackwardRecurrence {
   public:
    explicit BackwardRecurrence(const Shape& shape)
        : state(shape.width * MAX_VECTORS * LANES),
          grad_state(shape.width * MAX_VECTORS * LANES),
          factors(TOKENS_PER_STATE * shape.width),
          decayed(TOKENS_PER_STATE * shape.width * MAX_VECTORS * LANES) {}

    // Writes the gradient of v, and adds to those of the other inputs, which are 0 before.
    void head(const Shape& shape, const Recurrence& inputs, const Strided<float>& grad_out, const float* saved,
              const Recurrence& grads, int64_t b, int64_t h) {
        for (int64_t first = 0; first < shape.value_width; first += MAX_VECTORS * LANES) {
            const int64_t count = std::min<int64_t>(shape.value_width - first, MAX_VECTORS * LANES);
            with_columns(first, count, [&](const auto& columns) {
                head(shape, inputs, grad_out, saved, grads, b, h, columns);
            });
        }
    }

   private:
    template <int VECTORS>
    void head(const Shape& shape, const Recurrence& inputs, const Strided<float>& grad_out, const float* saved,
              const Recurrence& grads, int64_t b, int64_t h, const Columns<VECTORS>& columns) {
        floats errors[TOKENS_PER_STATE][VECTORS], updates[TOKENS_PER_STATE][VECTORS];
        std::fill_n(grad_state.at(0), shape.width * columns.WIDTH, 0.0f);
        for (int64_t state_number = saved_states(shape.tokens) - 1; state_number >= 0; --state_number) {
            const int64_t first = state_number * TOKENS_PER_STATE;
            const int64_t count = std::min(shape.tokens - first, TOKENS_PER_STATE);
            const float* before = saved + state_number * shape.width * shape.value_width;
            columns.load_state(before, shape.value_width, shape.width, state.at(0));
            for (int64_t n = 0; n < count; ++n) {
                const Token token{b, h, first + n};
                take_decays(inputs, token, shape.width, factors_of(shape, n));
                columns.write_token(inputs, token, shape.width, factors_of(shape, n), state.at(0),
                                    decayed_of(shape, columns, n), errors[n], updates[n]);
            }
            for (int64_t n = count - 1; n >= 0; --n)
                token_backward(shape, inputs, grad_out, columns, Token{b, h, first + n}, n, errors[n], updates[n],
                               grads);
        }
    }

    // Turns `grad_state`, the gradient of the state after the token, into that of the state before it, and adds to the
    // gradients of the token's inputs. `number` counts the tokens since the saved state.
    template <int VECTORS>
    void token_backward(const Shape& shape, const Recurrence& inputs, const Strided<float>& grad_out,
                        const Columns<VECTORS>& columns, const Token& token, int64_t number, const floats* error,
                        const floats* update, const Recurrence& grads) {
        const float *q = row_of(inputs.q, token), *k = row_of(inputs.k, token);
        floats grad_read[VECTORS], grad_update[VECTORS]{};
        columns.read(row_of(&grad_out, token), grad_read);
        for (int64_t c = 0; c < shape.width; ++c)
            for (int n = 0; n < VECTORS; ++n) {
                float* place = grad_state.at(c * columns.WIDTH + n * LANES);
                const floats grad_row = load(place) + q[c] * grad_read[n];
                store(place, grad_row);
                grad_update[n] += k[c] * grad_row;
            }

        floats grad_error[VECTORS]{};
        if (inputs.strength != nullptr) {
            const float strength = *row_of(inputs.strength, token);
            floats products{};
            for (int n = 0; n < VECTORS; ++n) {
                products += grad_update[n] * error[n];
                grad_error[n] = strength * grad_update[n];
            }
            *row_of(grads.strength, token) += sum_by_halves(products);
            columns.write(row_of(grads.v, token), grad_error);
        } else {
            columns.write(row_of(grads.v, token), grad_update);
        }

        floats products{};
        for (int n = 0; n < VECTORS; ++n) products += update[n] * grad_read[n];
        const float update_dot_grad_read = sum_by_halves(products);
        const float *factors = factors_of(shape, number), *decayed_state = decayed_of(shape, columns, number);
        float *grad_q = row_of(grads.q, token), *grad_k = row_of(grads.k, token);
        float* grad_log_decay = row_of(grads.log_decay, token);
        floats grad_decay_sum{};
        for (int64_t c = 0; c < shape.width; ++c) {
            floats grad_q_c{}, grad_k_c{}, grad_decay_c{};
            for (int n = 0; n < VECTORS; ++n) {
                const int64_t place = c * columns.WIDTH + n * LANES;
                const floats row = load(decayed_state + place), grad_row = load(grad_state.at(place));
                const floats grad_decayed = grad_row - k[c] * grad_error[n];
                grad_q_c += row * grad_read[n];
                grad_k_c += grad_row * update[n] - row * grad_error[n];
                grad_decay_c += row * grad_decayed;
                store(grad_state.at(place), factors[c] * grad_decayed);
            }
            grad_q[c] += sum_by_halves(grad_q_c) + k[c] * update_dot_grad_read;
            grad_k[c] += sum_by_halves(grad_k_c);
            if (inputs.decays_per_token == 1)
                grad_decay_sum += grad_decay_c;
            else
                grad_log_decay[c] += sum_by_halves(grad_decay_c);
        }
        if (inputs.decays_per_token == 1) *grad_log_decay += sum_by_halves(grad_decay_sum);
    }

    float* factors_of(const Shape& shape, int64_t number) { return factors.at(number * shape.width); }

    template <int VECTORS>
    float* decayed_of(const Shape& shape, const Columns<VECTORS>& columns, int64_t number) {
        return decayed.at(number * shape.width * columns.WIDTH);
    }

    Buffer<float> state, grad_state;
    Buffer<float> factors, decayed;  // of each token since the saved state: e^g, and the state after the decay
};

// Where the states of a head begin in `saved` [batch, heads, states, width, value_width].
int64_t first_state(const Shape& shape, int64_t b, int64_t h) {
    return (b * shape.heads + h) * saved_states(shape.tokens) * shape.width * shape.value_width;
}

}  // namespace

extern "C" {

// The number of states that the forward pass saves of each head.
int64_t pe_bench_saved_states(int64_t tokens) { return saved_states(tokens); }

// Returns 0, or 1 where there was no memory. `saved` [batch, heads, states, width, value_width] is written for the
// backward pass, and null without one.
int pe_bench_recurrence(const Shape* shape, const Strided<float>* q, const Strided<float>* k, const Strided<float>* v,
                        const Strided<float>* log_decay, const Strided<float>* strength, int64_t decays_per_token,
                        const Strided<float>* out, float* saved) {
    const Recurrence inputs{q, k, v, log_decay, strength, decays_per_token};
    // Where there are too few heads for all threads, groups of columns are as narrow as they can be.
    const bool has_few_heads = shape->batch * shape->heads < shape->threads;
    const int64_t group = has_few_heads ? LANES : MAX_VECTORS * LANES;
    const int64_t groups = (shape->value_width + group - 1) / group;
    const auto work = [&](ForwardRecurrence& pass, int64_t b, int64_t h, Part part) {
        const int64_t first = part.first * group;
        float* head_states = saved == nullptr ? nullptr : saved + first_state(*shape, b, h);
        with_columns(first, std::min(shape->value_width - first, group), [&](const auto& columns) {
            pass.head(*shape, inputs, *out, head_states, b, h, columns);
        });
    };
    return !each_part<ForwardRecurrence>(*shape, groups, work);
}

// Returns 0, or 1 where there was no memory. The caller fills the gradients with zeros; `grad_strength` is null where
// `strength` is.
int pe_bench_recurrence_backward(const Shape* shape, const Strided<float>* q, const Strided<float>* k,
                                 const Strided<float>* v, const Strided<float>* log_decay,
                                 const Strided<float>* strength, int64_t decays_per_token,
                                 const Strided<float>* grad_out, const float* saved, const Strided<float>* grad_q,
                                 const Strided<float>* grad_k, const Strided<float>* grad_v,
                                 const Strided<float>* grad_log_decay, const Strided<float>* grad_strength) {
    const Recurrence inputs{q, k, v, log_decay, strength, decays_per_token};
    const Recurrence grads{grad_q, grad_k, grad_v, grad_log_decay, grad_strength, decays_per_token};
    return !each_part<BackwardRecurrence>(*shape, 1, [&](BackwardRecurrence& pass, int64_t b, int64_t h, Part) {
        pass.head(*shape, inputs, *grad_out, saved + first_state(*shape, b, h), grads, b, h);
    });
}
}
