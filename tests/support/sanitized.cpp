// Runs a kernel, and what lies between attentions, on many shapes, under the sanitizers it is compiled with; ends
// with 0 where nothing is amiss.
#if defined(EMULATED_TILES) || defined(DOT_PRODUCTS)  // few shapes: emulation is slow, and squares have one size
#define OF_BFLOAT16
#include "../../pe_bench/native/bfloat16.cpp"
#define SOME_TOKENS {1, 31, 32, 33, 161}
#define SOME_WIDTHS {7, 33}
#define SOME_VALUE_WIDTHS {1, 40}
#else
#include "../../pe_bench/native/kernel.cpp"
#define SOME_TOKENS {1, 2, 5, 47, 48, 49, 127, 128, 129, 200, 300}
#define SOME_WIDTHS {1, 7, 16, 33}
#define SOME_VALUE_WIDTHS {1, 16, 20}
#endif

#include <cstdio>
#include <random>
#include <type_traits>

namespace {

std::mt19937 generator{0};

using Number = std::remove_pointer_t<decltype(Tensor::data)>;

// Single precision as it is, or cut to its upper half.
Number number_from(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const auto upper = uint16_t(bits >> 16);
    Number number;
    std::memcpy(&number, sizeof number == 2 ? static_cast<const void*>(&upper) : &bits, sizeof number);
    return number;
}

[[maybe_unused]] bool is_finite(float value) { return std::isfinite(value); }
[[maybe_unused]] bool is_finite(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }

template <class Some>
bool all_finite(const std::vector<Some>& values) {
    return std::all_of(values.begin(), values.end(), [](Some value) { return is_finite(value); });
}

std::vector<float> random_floats(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(generator);
    return values;
}

std::vector<Number> random_numbers(int64_t count) {
    std::vector<Number> values;
    for (const float value : random_floats(count)) values.push_back(number_from(value));
    return values;
}

// [batch, tokens, heads, width] in memory, as the decoder has them.
Tensor seen_as(std::vector<Number>& values, const Shape& shape, int64_t width) {
    return {values.data(), shape.tokens * shape.heads * width, width, shape.heads * width};
}

bool try_shape(const Shape& shape, bool with_bias) {
    const int64_t rows = shape.batch * shape.heads * shape.tokens;
    auto q = random_numbers(rows * shape.width), k = random_numbers(rows * shape.width);
    auto v = random_numbers(rows * shape.value_width), slope = random_numbers(rows * shape.value_width);
    auto bias = random_floats(shape.heads * shape.tokens);
    std::vector<Number> out(v.size()), dq(q.size()), dk(k.size()), dv(v.size());
    std::vector<float> normalizers(static_cast<size_t>(2 * rows)), of_each(normalizers.size() / 2), of_bias(bias.size());
    const Tensor Q = seen_as(q, shape, shape.width), K = seen_as(k, shape, shape.width);
    const Tensor V = seen_as(v, shape, shape.value_width), OUT = seen_as(out, shape, shape.value_width);
    const Tensor SLOPE = seen_as(slope, shape, shape.value_width), DQ = seen_as(dq, shape, shape.width);
    const Tensor DK = seen_as(dk, shape, shape.width), DV = seen_as(dv, shape, shape.value_width);
    const float* given = with_bias ? bias.data() : nullptr;
    if (pe_bench_forward(&shape, &Q, &K, &V, given, &OUT, normalizers.data())) return false;
    if (pe_bench_backward(&shape, &Q, &K, &V, given, &OUT, normalizers.data(), &SLOPE, &DQ, &DK, &DV,
                          with_bias ? of_each.data() : nullptr, with_bias ? of_bias.data() : nullptr))
        return false;
    return all_finite(out) && all_finite(normalizers) && all_finite(dq) && all_finite(dk) && all_finite(dv) &&
           all_finite(of_bias);
}

#ifndef OF_BFLOAT16
bool try_layers(int64_t rows, int64_t width, int threads) {
    const auto x = random_floats(rows * width), slope = random_floats(rows * width), weight = random_floats(width);
    const auto both = random_floats(2 * rows * width);
    std::vector<float> out(x.size()), of_x(x.size()), of_both(both.size()), factor(static_cast<size_t>(rows));
    std::vector<float> of_weight(static_cast<size_t>(chunks_of(rows) * width)), nll(factor.size());
    std::vector<float> normalizers(2 * factor.size());
    std::vector<int64_t> targets(factor.size());
    for (size_t row = 0; row < targets.size(); ++row) targets[row] = int64_t(row) % width;
    pe_bench_rms_norm(rows, width, threads, 1e-5f, x.data(), weight.data(), out.data(), factor.data());
    for (const float* also : {x.data(), static_cast<const float*>(nullptr)})
        pe_bench_rms_norm_backward(rows, width, threads, slope.data(), x.data(), weight.data(), factor.data(), also,
                                   of_x.data(), of_weight.data());
    bool is_finite = all_finite(out) && all_finite(of_x) && all_finite(of_weight);
    pe_bench_swiglu(rows, width, threads, both.data(), out.data());
    pe_bench_swiglu_backward(rows, width, threads, slope.data(), both.data(), of_both.data());
    is_finite = is_finite && all_finite(out) && all_finite(of_both);
    pe_bench_nll(rows, width, threads, x.data(), targets.data(), nll.data(), normalizers.data());
    pe_bench_nll_backward(rows, width, threads, nll.data(), x.data(), targets.data(), normalizers.data(), of_x.data());
    return is_finite && all_finite(nll) && all_finite(of_x);
}

bool try_polynomials(int64_t count, int64_t width, int threads) {
    const auto squares = random_floats(count * width * width);
    const float coefficients[] = {0.1f, 0.1f, 0.1f};
    std::vector<float> totals(squares.size());
    return pe_bench_polynomials(count, width, threads, squares.data(), coefficients, 2, totals.data()) == 0 &&
           all_finite(totals);
}

bool try_rotation(const Shape& shape, int64_t pairs) {
    auto x = random_numbers(shape.batch * shape.heads * shape.tokens * shape.width);
    const auto angles = random_floats(shape.tokens * pairs);
    std::vector<Number> out(x.size());
    const Tensor X = seen_as(x, shape, shape.width), OUT = seen_as(out, shape, shape.width);
    pe_bench_rotate(&shape, &X, angles.data(), angles.data(), 0, pairs, -1, &OUT);
    return all_finite(out);
}

bool try_recurrence(const Shape& shape, bool corrects, bool decays_by_row) {
    const int64_t rows = shape.batch * shape.heads * shape.tokens, decays = decays_by_row ? shape.width : 1;
    auto q = random_numbers(rows * shape.width), k = q;
    auto v = random_numbers(rows * shape.value_width), grad_out = v;
    std::vector<Number> log_decay(static_cast<size_t>(rows * decays), -1), strength(static_cast<size_t>(rows), 0.1f);
    std::vector<Number> out(v.size(), NAN), grad_v(v.size(), NAN), grad_q(q.size()), grad_k(k.size());
    std::vector<Number> grad_log_decay(log_decay.size()), grad_strength(strength.size());
    for (Number& each : k) each /= float(shape.width);  // so that corrections shrink the state
    const int64_t states = shape.batch * shape.heads * pe_bench_saved_states(shape.tokens);
    std::vector<float> saved(static_cast<size_t>(states * shape.width * shape.value_width), NAN);
    const Tensor Q = seen_as(q, shape, shape.width), K = seen_as(k, shape, shape.width);
    const Tensor V = seen_as(v, shape, shape.value_width), OUT = seen_as(out, shape, shape.value_width);
    const Tensor G = seen_as(log_decay, shape, decays), DG = seen_as(grad_log_decay, shape, decays);
    const Tensor B = seen_as(strength, shape, 1), DB = seen_as(grad_strength, shape, 1);
    const Tensor DOUT = seen_as(grad_out, shape, shape.value_width), DQ = seen_as(grad_q, shape, shape.width);
    const Tensor DK = seen_as(grad_k, shape, shape.width), DV = seen_as(grad_v, shape, shape.value_width);
    const Tensor *given = corrects ? &B : nullptr, *grad_strength_or_null = corrects ? &DB : nullptr;
    for (float* to : {static_cast<float*>(nullptr), saved.data()})
        if (pe_bench_recurrence(&shape, &Q, &K, &V, &G, given, decays, &OUT, to)) return false;
    if (pe_bench_recurrence_backward(&shape, &Q, &K, &V, &G, given, decays, &DOUT, saved.data(), &DQ, &DK, &DV, &DG,
                                     grad_strength_or_null))
        return false;
    return all_finite(out) && all_finite(grad_q) && all_finite(grad_k) && all_finite(grad_v) &&
           all_finite(grad_log_decay) && all_finite(grad_strength);
}
#endif

}  // namespace

int main() {
    for (const int64_t tokens : SOME_TOKENS)
        for (const int64_t width : SOME_WIDTHS)
            for (const int64_t value_width : SOME_VALUE_WIDTHS)
                for (const int32_t threads : {1, 3}) {
                    const Shape shape{2, 2, tokens, width, value_width, 0.3f, threads};
                    if (!try_shape(shape, true) || !try_shape(shape, false)) {
                        std::printf("failed: %ld tokens, width %ld\n", long(tokens), long(width));
                        return 1;
                    }
                }
#ifndef OF_BFLOAT16
    for (const int64_t tokens : {1, 31, 32, 33, 100})
        for (const int64_t width : SOME_WIDTHS)
            for (const int64_t value_width : {1, 16, 20, 33, 65})
                for (const bool corrects : {true, false})
                    for (const bool decays_by_row : {true, false})
                        for (const int32_t threads : {1, 7})
                            if (!try_recurrence({2, 2, tokens, width, value_width, 1, threads}, corrects,
                                                decays_by_row)) {
                                std::printf("failed: recurrence of %ld tokens, width %ld\n", long(tokens), long(width));
                                return 1;
                            }
    for (const int64_t rows : {1, 31, 32, 33, 100})
        for (const int64_t width : {1, 7, 16, 33, 128})
            for (const int threads : {1, 3})
                if (!try_layers(rows, width, threads) || !try_polynomials(rows % 5, width, threads) ||
                    !try_rotation({2, 2, rows, width, width, 0.3f, threads}, width / 2)) {
                    std::printf("failed: layers of %ld rows, width %ld\n", long(rows), long(width));
                    return 1;
                }
#endif
    return 0;
}
