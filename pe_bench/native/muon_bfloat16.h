// Muon's iterations in bfloat16 (training/optimizer.py), for a matrix X [M, N] with M <= N that is first divided by
// its norm:
//
//   G = X X^T,    F = b G + c G^2,    X <- a X + F X
//
// Products are summed in float32; G, F and X are rounded to bfloat16. G and F are symmetric: only their blocks of
// 32 x 32 on and below the diagonal are computed, and those above it are these transposed. A matrix that is taller
// than wide is transposed as it is read, and again as it is written. One thread does a matrix.
#pragma once

namespace {

struct Muon {
    Muon(int64_t height, int64_t width)
        : height(height),
          width(width),
          is_tall(height > width),
          strips(pieces(std::min(height, width))),
          across(pieces(std::max(height, width))),
          x(strips * across * PANEL),
          x_paired(strips * across * PANEL),
          x_turned(strips * across * PANEL),
          gram(strips * strips * PANEL),
          gram_turned(strips * strips * PANEL),
          factor(strips * strips * PANEL),
          sums(SQUARE),
          transposed(SQUARE) {}

    // From and to [height, width].
    void run(const float* from, float min_norm, const float* coefficients, int iterations, float* to) {
        read_matrix(from, 1 / std::max(norm_of(from), min_norm));
        for (int n = 0; n < iterations; ++n) {
            transpose(across, strips, true, x.at(0), x_turned.at(0));
            multiply_by_transposed(across, x, x_turned, gram, [](int64_t) {});
            transpose(strips, strips, true, gram.at(0), gram_turned.at(0));
            multiply_by_transposed(strips, gram, gram_turned, factor, [&](int64_t place) {
                scale_and_add(coefficients[2], coefficients[1], gram.at(place));
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
        write_matrix(to);
    }

   private:
    float norm_of(const float* from) const {
        constexpr int64_t CHUNK = 256 * LANES;  // numbers whose squares are summed in float32
        const int64_t size = height * width;
        double total = 0;
        for (int64_t first = 0; first < size; first += CHUNK) {
            const int64_t end = std::min(size, first + CHUNK);
            floats squares{};
            int64_t n = first;
            for (; n + LANES <= end; n += LANES) squares += load(from + n) * load(from + n);
            for (; n < end; ++n) total += double(from[n]) * from[n];
            total += sum_of(squares);
        }
        return float(std::sqrt(total));
    }

    // Calls `work` on each block of the matrix as it lies in memory: the place of its first number, how many rows and
    // columns of the matrix it has, and its panel in `x`.
    template <class Work>
    void each_block(Work work) {
        for (int64_t row = 0; row < height; row += SIDE)
            for (int64_t column = 0; column < width; column += SIDE) {
                const int64_t down = row / SIDE, right = column / SIDE;
                const int64_t panel = is_tall ? down * strips + right : right * strips + down;
                work(row * width + column, std::min<int64_t>(SIDE, height - row),
                     std::min<int64_t>(SIDE, width - column), x.at(panel * PANEL));
            }
    }

    void read_matrix(const float* from, float scale) {
        each_block([&](int64_t place, int64_t rows, int64_t columns, uint32_t* panel) {
            std::fill_n(sums.at(0), SQUARE, 0.0f);
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t column = 0; column < columns; ++column)
                    *sums.at(row * SIDE + column) = scale * from[place + row * width + column];
            if (is_tall) turn(sums.at(0), SIDE, SIDE, transposed.at(0));
            to_left(is_tall ? transposed.at(0) : sums.at(0), panel);
        });
    }

    void write_matrix(float* to) {
        each_block([&](int64_t place, int64_t rows, int64_t columns, const uint32_t* panel) {
            std::fill_n(sums.at(0), SQUARE, 0.0f);
            scale_and_add(1, 1, panel);
            if (is_tall) turn(sums.at(0), SIDE, SIDE, transposed.at(0));
            const float* square = is_tall ? transposed.at(0) : sums.at(0);
            for (int64_t row = 0; row < rows; ++row)
                std::memcpy(to + place + row * width, square + row * SIDE, size_t(columns) * sizeof(float));
        });
    }

    // Left panels of a matrix times its transposed, from left panels of the matrix and right panels of the
    // transposed; `steps` panels are summed. `change` may change the sums of the panel at a
    // place of `out` before they are rounded.
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
    const int64_t height, width;
    const bool is_tall;
    const int64_t strips, across;
    Words x, x_paired, x_turned, gram, gram_turned, factor;
    Floats sums, transposed;
};

}  // namespace

// `from` and `to` are [count, height, width]. Returns 0, or 1 where there was no memory.
extern "C" int pe_bench_iterate_muon(int64_t count, int64_t height, int64_t width, int threads, const float* from,
                                     float min_norm, const float* coefficients, int iterations, float* to) {
    const int64_t size = height * width;
    std::atomic<int64_t> next{0};
    auto take = [&] {
        try {
            Muon muon(height, width);
            for (int64_t n = next++; n < count; n = next++)
                muon.run(from + n * size, min_norm, coefficients, iterations, to + n * size);
        } catch (const std::bad_alloc&) {
            // What this thread did not take, the others do.
        }
    };
    on_threads(std::min<int64_t>(threads, count), take);
    return next < count;
}
