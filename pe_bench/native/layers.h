// What lies between the products of matrices: RMSNorm, SwiGLU, the rotation of pairs and the loss, forward and
// backward, in float32; SwiGLU also reads and writes bfloat16. PyTorch takes several passes over memory for each.
//
// A row is the features of one token, and is done by one thread. What is summed over rows is summed within
// chunks of them first, then over the chunks in order, so that results do not depend on the number of threads.
#pragma once

#include "common.h"

namespace {

constexpr int64_t CHUNK = 32;  // rows

// A part of a vector, filled up with zeros.
inline floats load_part(const float* from, int64_t count) {
    floats value{};
    std::memcpy(&value, from, size_t(count) * sizeof(float));
    return value;
}

inline floats load(const float* from, int64_t count) {
    return count == LANES ? load(from) : load_part(from, count);
}

inline void store(float* to, floats value, int64_t count) {
    if (count == LANES)
        store(to, value);
    else
        std::memcpy(to, &value, size_t(count) * sizeof(float));
}

inline floats load(const uint16_t* from, int64_t count) {
    uint16_t numbers[LANES] = {};
    std::memcpy(numbers, from, size_t(count) * sizeof(uint16_t));
    return number_of(widened(numbers));
}

inline void store(uint16_t* to, floats value, int64_t count) {
    const halves numbers = __builtin_convertvector(rounded(value), halves);
    std::memcpy(to, &numbers, size_t(count) * sizeof(uint16_t));
}

// Visits a row by vectors: the first number of each, and how many there are.
template <class Visit>
inline void each_vector(int64_t width, Visit visit) {
    int64_t first = 0;
    for (; first + LANES <= width; first += LANES) visit(first, int64_t(LANES));
    if (first < width) visit(first, width - first);
}

int64_t chunks_of(int64_t rows) { return (rows + CHUNK - 1) / CHUNK; }

template <class Work>
void each_chunk(int64_t rows, int threads, Work work) {
    std::atomic<int64_t> next{0};
    const int64_t chunks = chunks_of(rows);
    auto take = [&] {
        for (int64_t n = next++; n < chunks; n = next++) work(n, n * CHUNK, std::min(rows, (n + 1) * CHUNK));
    };
    on_threads(std::min<int64_t>(threads, chunks), take);
}

// e^-|x| and with it 1 / (1 + e^-x), which no x can overflow.
inline floats sigmoid(floats x) {
    const floats fallen = exp_of_nonpositive(x < 0.0f ? x : -x);
    return (x < 0.0f ? fallen : all(1.0f)) / (1.0f + fallen);
}

template <class Number>
void swiglu(int64_t rows, int64_t width, int threads, const Number* both, Number* out) {
    each_chunk(rows, threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const Number *gate = both + row * 2 * width, *up = gate + width;
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats x = load(gate + c, n);
                store(out + row * width + c, x * sigmoid(x) * load(up + c, n), n);
            });
        }
    });
}

template <class Number>
void swiglu_backward(int64_t rows, int64_t width, int threads, const Number* slope, const Number* both,
                     Number* of_both) {
    each_chunk(rows, threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const Number *gate = both + row * 2 * width, *up = gate + width, *from = slope + row * width;
            Number *of_gate = of_both + row * 2 * width, *of_up = of_gate + width;
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats x = load(gate + c, n), gradient = load(from + c, n), share = sigmoid(x);
                store(of_up + c, gradient * x * share, n);
                store(of_gate + c, gradient * load(up + c, n) * share * (1.0f + x * (1.0f - share)), n);
            });
        }
    });
}

}  // namespace

extern "C" {

// out = weight x / sqrt(mean(x^2) + epsilon); `factor` [rows] is one over the root.
void pe_bench_rms_norm(int64_t rows, int64_t width, int threads, float epsilon, const float* x,
                       const float* weight, float* out, float* factor) {
    each_chunk(rows, threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const float* from = x + row * width;
            float* to = out + row * width;
            floats squares{};
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats value = load(from + c, n);
                squares += value * value;
            });
            const float scale = 1 / std::sqrt(sum_of(squares) / float(width) + epsilon);
            factor[row] = scale;
            each_vector(width, [&](int64_t c, int64_t n) {
                store(to + c, load(from + c, n) * scale * load(weight + c, n), n);
            });
        }
    });
}

// `of_x` is the gradient of x, plus `also` where that is not null; `of_weight` [chunks, width] that of the
// weight, of which the first row is the sum over all at the end.
void pe_bench_rms_norm_backward(int64_t rows, int64_t width, int threads, const float* slope, const float* x,
                                const float* weight, const float* factor, const float* also, float* of_x,
                                float* of_weight) {
    each_chunk(rows, threads, [&](int64_t chunk, int64_t first, int64_t last) {
        float* sums = of_weight + chunk * width;
        std::fill_n(sums, width, 0.0f);
        for (int64_t row = first; row < last; ++row) {
            const float *value = x + row * width, *gradient = slope + row * width;
            const float scale = factor[row];
            floats products{};
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats product = load(gradient + c, n) * load(value + c, n);
                products += product * load(weight + c, n);
                store(sums + c, load(sums + c, n) + product * scale, n);
            });
            const float shared = sum_of(products) * scale * scale / float(width);
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats inner = load(gradient + c, n) * load(weight + c, n) - shared * load(value + c, n);
                const floats other = also == nullptr ? floats{} : load(also + row * width + c, n);
                store(of_x + row * width + c, scale * inner + other, n);
            });
        }
    });
    for (int64_t chunk = 1; chunk < chunks_of(rows); ++chunk)
        each_vector(width, [&](int64_t c, int64_t n) {
            store(of_weight + c, load(of_weight + c, n) + load(of_weight + chunk * width + c, n), n);
        });
}

// out [rows, width] = gate / (1 + e^-gate) up; a row of `both` [rows, 2 width] has the gate and what passes it.
void pe_bench_swiglu(int64_t rows, int64_t width, int threads, const float* both, float* out) {
    swiglu(rows, width, threads, both, out);
}

void pe_bench_swiglu_bfloat16(int64_t rows, int64_t width, int threads, const uint16_t* both, uint16_t* out) {
    swiglu(rows, width, threads, both, out);
}

void pe_bench_swiglu_backward(int64_t rows, int64_t width, int threads, const float* slope, const float* both,
                              float* of_both) {
    swiglu_backward(rows, width, threads, slope, both, of_both);
}

void pe_bench_swiglu_backward_bfloat16(int64_t rows, int64_t width, int threads, const uint16_t* slope,
                                       const uint16_t* both, uint16_t* of_both) {
    swiglu_backward(rows, width, threads, slope, both, of_both);
}

// Turns the pairs (c, c + pairs) of x by the angles of a token, each with a cosine and a sine; `sign` -1 turns
// them back. What is beyond the pairs is copied. `each` is how far apart the tables of two batches lie, in numbers.
void pe_bench_rotate(const Shape* shape, const Strided<float>* x, const float* cosines, const float* sines,
                     int64_t each, int64_t pairs, float sign, const Strided<float>* out) {
    each_chunk(shape->batch * shape->tokens, shape->threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const int64_t b = row / shape->tokens, t = row % shape->tokens;
            const float* cosine = cosines + b * each + t * pairs;
            const float* sine = sines + b * each + t * pairs;
            for (int64_t h = 0; h < shape->heads; ++h) {
                const float* from = x->data + b * x->batch + h * x->heads + t * x->tokens;
                float* to = out->data + b * out->batch + h * out->heads + t * out->tokens;
                each_vector(pairs, [&](int64_t c, int64_t n) {
                    const floats left = load(from + c, n), right = load(from + pairs + c, n);
                    const floats of_cosine = load(cosine + c, n), of_sine = sign * load(sine + c, n);
                    store(to + c, left * of_cosine - right * of_sine, n);
                    store(to + pairs + c, right * of_cosine + left * of_sine, n);
                });
                std::copy(from + 2 * pairs, from + shape->width, to + 2 * pairs);
            }
        }
    });
}

// nll = log(sum(e^logits)) - logits[target], NaN for a target that is no token; `normalizers` [rows, 2] are the
// largest logit of a row, and one over the sum of what the weights are before they are divided.
void pe_bench_nll(int64_t rows, int64_t width, int threads, const float* logits, const int64_t* targets,
                  float* nll, float* normalizers) {
    each_chunk(rows, threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const float* line = logits + row * width;
            floats most = all(NEVER);
            each_vector(width, [&](int64_t c, int64_t n) {
                if (n == LANES)
                    most = larger(most, load(line + c));
                else
                    for (int64_t lane = 0; lane < n; ++lane) most[0] = std::max(most[0], line[c + lane]);
            });
            const float largest = largest_of(most);
            floats added{};
            each_vector(width, [&](int64_t c, int64_t n) {
                floats weight = exp_of_nonpositive(load(line + c, n) - largest);
                for (int64_t lane = n; lane < LANES; ++lane) weight[lane] = 0;
                added += weight;
            });
            const float sum = sum_of(added);
            const bool is_token = targets[row] >= 0 && targets[row] < width;
            nll[row] = is_token ? std::log(sum) + (largest - line[targets[row]]) : NAN;
            normalizers[2 * row] = largest;
            normalizers[2 * row + 1] = 1 / sum;
        }
    });
}

// The gradient of the logits; `slope` [rows] is that of the nll.
void pe_bench_nll_backward(int64_t rows, int64_t width, int threads, const float* slope, const float* logits,
                           const int64_t* targets, const float* normalizers, float* of_logits) {
    each_chunk(rows, threads, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
            const float* line = logits + row * width;
            const float largest = normalizers[2 * row], factor = slope[row] * normalizers[2 * row + 1];
            each_vector(width, [&](int64_t c, int64_t n) {
                const floats weight = exp_of_nonpositive(load(line + c, n) - largest);
                store(of_logits + row * width + c, factor * weight, n);
            });
            if (targets[row] >= 0 && targets[row] < width) of_logits[row * width + targets[row]] -= slope[row];
        }
    });
}
}
