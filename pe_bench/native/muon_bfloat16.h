// Muon's iterations in bfloat16 (training/optimizer.py), for a matrix X [M, N] with M <= N:
//
//   G = X X^T,    F = b G + c G^2,    X <- a X + F X
//
// Products are summed in float32; G, F and X are rounded to bfloat16. G and F are symmetric: only their squares on
// and below the diagonal are computed, and those above it are these transposed. One thread does a matrix.
#pragma once

namespace {

struct Muon {
    Muon(int64_t height, int64_t width)
        : strips(pieces(height)),
          across(pieces(width)),
          x(strips * across * PANEL),
          x_paired(strips * across * PANEL),
          x_turned(strips * across * PANEL),
          gram(strips * strips * PANEL),
          gram_turned(strips * strips * PANEL),
          factor(strips * strips * PANEL),
          sums(SQUARE),
          transposed(SQUARE) {}

    // Iterates on the matrix with these rows, in place.
    void run(const Rows& rows, const float* coefficients, int iterations) {
        const Rows gram_rows{rows.tensor, 0, 0, strips * SIDE, strips * SIDE};
        pack(rows, x.at(0));
        for (int n = 0; n < iterations; ++n) {
            transpose(rows, true, x.at(0), x_turned.at(0));
            multiply_by_transposed(across, x, x_turned, gram, [](int64_t) {});
            transpose(gram_rows, true, gram.at(0), gram_turned.at(0));
            multiply_by_transposed(strips, gram, gram_turned, factor, [&](int64_t panel) {
                scale_and_add(coefficients[2], coefficients[1], gram.at(panel));
            });
            pair(strips * across, x.at(0), x_paired.at(0));
            for (int64_t column = 0; column < across; ++column)
                for (int64_t strip = 0; strip < strips; ++strip) {
                    uint32_t* panel = x.at((column * strips + strip) * PANEL);
                    product<false>(strips, factor.at(strip * PANEL), strips, x_paired.at(column * strips * PANEL),
                                   sums.at(0));
                    scale_and_add(1, coefficients[0], panel);
                    to_left(sums.at(0), panel);
                }
        }
        for (int64_t row = 0; row < rows.tokens; ++row)
            for (int64_t column = 0; column < rows.width; column += SIDE) {
                const int64_t panel = column / SIDE * strips + row / SIDE;
                copy_numbers(rows.width - column, x.at(panel * PANEL + row % SIDE * HALF), rows.at(row) + column);
            }
    }

   private:
    // Left panels of a matrix times its transposed, from left panels of the matrix and right panels of the
    // transposed; `steps` panels are summed. `change` may change the sums of a panel before they are rounded.
    template <class Change>
    void multiply_by_transposed(int64_t steps, const Words& left, const Words& right, Words& out, Change change) {
        for (int64_t column = 0; column < strips; ++column)
            for (int64_t strip = column; strip < strips; ++strip) {
                const int64_t below = (column * strips + strip) * PANEL, above = (strip * strips + column) * PANEL;
                product<false>(steps, left.at(strip * PANEL), strips, right.at(column * steps * PANEL), sums.at(0));
                change(below);
                to_left(sums.at(0), out.at(below));
                if (strip == column) continue;
                turn(sums.at(0), SIDE, SIDE, transposed.at(0));
                to_left(transposed.at(0), out.at(above));
            }
    }

    // sums <- scale sums + other_scale numbers, with the numbers of a left panel.
    void scale_and_add(float scale, float other_scale, const uint32_t* panel) {
        const auto* numbers = reinterpret_cast<const uint16_t*>(panel);
        for (int n = 0; n < SQUARE; n += LANES)
            store(sums.at(n), scale * load(sums.at(n)) + other_scale * number_of(widened(numbers + n)));
    }

    const Instructions instructions{};
    int64_t strips, across;
    Words x, x_paired, x_turned, gram, gram_turned, factor;
    Floats sums, transposed;
};

}  // namespace

// `matrices` are [count, height, width], and change in place. Returns 0, or 1 where there was no memory.
extern "C" int pe_bench_iterate_muon(int64_t count, int64_t height, int64_t width, int threads, uint16_t* matrices,
                                     const float* coefficients, int iterations) {
    const Tensor tensor{matrices, height * width, 0, width, nullptr, 0};
    std::atomic<int64_t> next{0};
    auto take = [&] {
        try {
            Muon muon(height, width);
            for (int64_t n = next++; n < count; n = next++)
                muon.run({tensor, n, 0, height, width}, coefficients, iterations);
        } catch (const std::bad_alloc&) {
            // What this thread did not take, the others do.
        }
    };
    on_threads(std::min<int64_t>(threads, count), take);
    return next < count;
}
