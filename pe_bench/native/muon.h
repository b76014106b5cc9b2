// The polynomial of a square matrix S that Muon's iterations come to (training/optimizer.py), in float32:
//
//   F = a I + b S + c S^2,    T <- F T,    S <- F S F,    T beginning with I
//
// PyTorch takes a call and a pass over memory for each step. Here a matrix is done by one thread and stays in
// its cache. Letters: M rows and columns.
#pragma once

namespace {

struct Polynomial {
    explicit Polynomial(int64_t width)
        : width(width), row(padded(width)), square(width * row), factor(width * row), total(width * row),
          other(width * row) {}

    // From and to [M, M].
    void run(const float* from, const float* coefficients, int iterations, float* to) {
        const size_t bytes = size_t(width) * sizeof(float);
        for (int64_t i = 0; i < width; ++i) std::memcpy(square.at(i * row), from + i * width, bytes);
        for (int n = 0; n < iterations; ++n) {
            multiply(square, square, factor);
            for (int64_t i = 0; i < width * row; i += LANES) {
                const floats squared = load(factor.at(i));
                store(factor.at(i), coefficients[2] * squared + coefficients[1] * load(square.at(i)));
            }
            for (int64_t i = 0; i < width; ++i) *factor.at(i * row + i) += coefficients[0];
            if (n == 0) {
                std::memcpy(total.at(0), factor.at(0), size_t(width * row) * sizeof(float));
            } else {
                multiply(factor, total, other);
                std::swap(total, other);
            }
            if (n + 1 == iterations) break;
            multiply(factor, square, other);
            multiply(other, factor, square);
        }
        for (int64_t i = 0; i < width; ++i) std::memcpy(to + i * width, total.at(i * row), bytes);
    }

   private:
    void multiply(const Floats& a, const Floats& b, Floats& out) {
        for (int64_t i = 0; i < width; i += ROWS) {
            const int rows = int(std::min<int64_t>(ROWS, width - i));
            const float* left = a.at(i * row);
            strip<false>(rows, int(width), left, row, 1, b.at(0), row, out.at(i * row), row, int(row));
        }
    }

    int64_t width, row;
    Floats square, factor, total, other;
};

}  // namespace

// `squares` and `totals` are [count, M, M]. Returns 0, or 1 where there was no memory.
extern "C" int pe_bench_polynomials(int64_t count, int64_t width, int threads, const float* squares,
                                    const float* coefficients, int iterations, float* totals) {
    const int64_t size = width * width;
    std::atomic<int64_t> next{0};
    auto take = [&] {
        try {
            Polynomial polynomial(width);
            for (int64_t n = next++; n < count; n = next++)
                polynomial.run(squares + n * size, coefficients, iterations, totals + n * size);
        } catch (const std::bad_alloc&) {
            // What this thread did not take, the others do.
        }
    };
    on_threads(std::min<int64_t>(threads, count), take);
    return next < count;
}
