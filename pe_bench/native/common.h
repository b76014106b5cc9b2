// What the kernels share: the processor's vectors, a head's memory, and the heads dealt to threads.
//
// Vectors are those of GCC and Clang: the compiler makes of them what the processor has.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

// The first key that each query sees, [tokens]; it never falls from query to query. Null: all see every key before.
struct FirstKeys {
    const int64_t* keys;
    int64_t operator()(int64_t query) const { return keys == nullptr ? 0 : keys[query]; }
};

struct Shape {
    int64_t batch, heads, tokens, width, value_width;
    float scale;
    int32_t threads;
    FirstKeys first_key;
};

// [batch, heads, tokens, width]; neighbours in the last dimension are neighbours in memory. The first
// `columns_width` entries of each row may be those of another tensor, `columns`, and are not scaled.
template <class Number>
struct Strided {
    Number* data;
    int64_t batch, heads, tokens;
    const Strided* columns;
    int64_t columns_width;
};

namespace {

// What the forward pass leaves for the weights of each query of a head: factor * e^(z - largest). The largest
// logit and the factor are apart, because their sum, the log-sum-exp, would lose what is less than the last place
// of a logit: at 1e5 a weight would be off by 0.4 %.
template <class Number>
struct Normalizers {
    // `both` is [2, batch, heads, tokens].
    Normalizers(const Shape& shape, Number* both, int64_t b, int64_t h)
        : largest(both + (b * shape.heads + h) * shape.tokens),
          factor(largest + shape.batch * shape.heads * shape.tokens) {}
    Number *largest, *factor;
};

// a b + sum as the products of tiles round it: where out_i is v_j, dout_i . out_i is then exactly dout_i . v_j,
// and the gradient of a logit whose weight is 1 is exactly 0.
inline float multiplied_and_added(float a, float b, float sum) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return std::fma(a, b, sum);
#else
    return a * b + sum;
#endif
}

#if defined(__AVX512F__) || defined(EMULATED_TILES)  // where there are tiles, there are vectors of 16
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t))));

constexpr float NEVER = -std::numeric_limits<float>::infinity();

inline floats load(const float* from) {
    floats value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, floats value) { std::memcpy(to, &value, sizeof value); }

template <class Vector>
Vector read(const void* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Vector>
void write(void* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

typedef uint32_t words __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t))));

// Rounded to bfloat16, to the nearest, ties to even: its bits.
inline words rounded(floats value) {
    const words bits = read<words>(&value);
    const words nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return value == value ? nearest : words{} + 0x7fc0;
}

inline words widened(const uint16_t* from) { return __builtin_convertvector(read<halves>(from), words); }

inline floats number_of(words bits) {
    const words high = bits << 16;
    return read<floats>(&high);
}

inline floats all(float value) { return floats{} + value; }

inline floats larger(floats a, floats b) { return a > b ? a : b; }

inline float largest_of(floats value) {
    float largest = value[0];
    for (int lane = 1; lane < LANES; ++lane) largest = std::max(largest, value[lane]);
    return largest;
}

inline float sum_of(floats value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += value[lane];
    return sum;
}

// Like `sum_of`, but adds halves, so that fewer additions wait for another. Sums may round differently.
inline float sum_by_halves(floats value) {
    typedef float quad __attribute__((vector_size(4 * sizeof(float))));
    quad quads[LANES / 4];
    std::memcpy(quads, &value, sizeof value);
    for (int half = LANES / 8; half > 0; half /= 2)
        for (int n = 0; n < half; ++n) quads[n] += quads[n + half];
    return (quads[0][0] + quads[0][2]) + (quads[0][1] + quads[0][3]);
}

// e^x for x <= 0, to 2 units in the last place; 0 where it would be no normal number. e^x = 2^n e^r with
// |r| <= ln(2) / 2, and e^r by the polynomial of the Cephes library (Moshier).
inline floats exp_of_nonpositive(floats x) {
    const floats clamped = x < -87.0f ? all(-87.0f) : x;  // so that what is no number stays none
    const floats round = all(12582912.0f);  // 1.5 * 2^23: what is added to it loses its fraction
    const floats n = (clamped * 1.44269504088896341f + round) - round;
    const floats r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * r) * r + r + 1.0f;
    const ints exponent = (__builtin_convertvector(n, ints) + 127) << 23;
    floats power;
    std::memcpy(&power, &exponent, sizeof power);
    return x < -87.0f ? floats{} : p * power;
}

// Memory of a number's own size, aligned to cache lines, and zero.
template <class Number>
struct Buffer {
    explicit Buffer(int64_t count) : data(allocate(size_t(count) * sizeof(Number))) {}
    Number* at(int64_t place) { return data.get() + place; }
    const Number* at(int64_t place) const { return data.get() + place; }

   private:
    struct Free {
        void operator()(Number* pointer) const { std::free(pointer); }
    };
    static Number* allocate(size_t bytes) {
        void* pointer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (pointer == nullptr) throw std::bad_alloc();
        std::memset(pointer, 0, bytes);
        return static_cast<Number*>(pointer);
    }
    std::unique_ptr<Number, Free> data;
};

// `GOMP_parallel` of the OpenMP that PyTorch has loaded, or null. Its threads are there already, and wait for
// work so eagerly that others beside them would get no processor.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
Parallel lent_threads = nullptr;

// Calls `work` in so many threads at the same time, or in fewer where no more are to be had.
template <class Work>
void on_threads(int64_t threads, Work& work) {
    if (threads > 1 && lent_threads != nullptr) {
        lent_threads([](void* given) { (*static_cast<Work*>(given))(); }, &work, unsigned(threads), 0);
        return;
    }
    std::vector<std::thread> others;
    for (int64_t n = 1; n < threads; ++n) {
        try {
            others.emplace_back(std::ref(work));
        } catch (...) {
            break;
        }
    }
    work();
    for (std::thread& other : others) other.join();
}

// A part of the work on a head: its blocks of queries `first`, `first` + `count`, `first` + 2 `count`, ...
struct Part {
    int64_t first, count;
};

// Calls `work` on every part of every head of the batch, in as many threads as have the memory; returns false if
// none had it.
template <class Pass, class Work>
bool each_part(const Shape& shape, int64_t parts, Work work) {
    const int64_t pieces = shape.batch * shape.heads * parts;
    std::atomic<int64_t> next{0};
    auto take = [&] {
        try {
            Pass pass(shape);
            for (int64_t n = next++; n < pieces; n = next++) {
                const int64_t head = n / parts;
                work(pass, head / shape.heads, head % shape.heads, Part{n % parts, parts});
            }
        } catch (const std::bad_alloc&) {
            // What this thread did not take, the others do.
        }
    };
    on_threads(std::min<int64_t>(shape.threads, pieces), take);
    return next >= pieces;
}

// The number of parts into which the work on a head's output is split: enough for two on each thread, of at least
// MIN_TOKENS_OF_PART tokens each. Every part reads the whole head, which costs little against the products of a long
// text, but not where queries see few keys: at most one part for SEEN_KEYS_OF_PART keys that a query sees on average.
// Queries do not depend on each other, so results do not depend on the parts.
inline int64_t parts_of_head(const Shape& shape) {
    constexpr int64_t MIN_TOKENS_OF_PART = 512, SEEN_KEYS_OF_PART = 64;
    const int64_t heads = shape.batch * shape.heads;
    if (shape.threads == 1 || shape.tokens < 2 * MIN_TOKENS_OF_PART) return 1;
    int64_t seen = 0;
    for (int64_t query = 0; query < shape.tokens; ++query) seen += query + 1 - shape.first_key(query);
    const int64_t most = std::min(shape.tokens / MIN_TOKENS_OF_PART, seen / shape.tokens / SEEN_KEYS_OF_PART);
    return std::clamp<int64_t>((2 * shape.threads + heads - 1) / heads, 1, std::max<int64_t>(1, most));
}

// The gradients [batch, heads, tokens] of the bias, added over the batch, in order.
void add_batch(const Shape& shape, const float* of_each, float* to) {
    for (int64_t n = 0, count = shape.heads * shape.tokens; n < count; ++n) {
        double sum = 0;
        for (int64_t b = 0; b < shape.batch; ++b) sum += of_each[b * count + n];
        to[n] = float(sum);
    }
}

}  // namespace
