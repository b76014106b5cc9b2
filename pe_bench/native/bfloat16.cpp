// The attention of kernel.cpp for bfloat16: the processor's instructions for bfloat16 multiply (products.h), and
// everything else is float32.
//
// Everything is cut into squares of 32 x 32. Scores stand transposed, keys x queries, and so do the sums over
// keys. Then a query is a lane of a vector: its largest logit and its sum need nothing across lanes, the weights
// become the right operand of a product where they lie, and of a distance table neighbouring lanes read
// neighbouring entries.
//
// An operand is cut into the panels of products.h, one after the other. A transposed left panel of a matrix, word
// by word, is a right panel of the transposed matrix, and the other way.
// The forward pass goes through the keys of 32 queries; the backward pass through the queries of 32 keys.

#include "common.h"
#include "products.h"

namespace {

using Tensor = Strided<uint16_t>;  // the bits of bfloat16
using Floats = Buffer<float>;
using Words = Buffer<uint32_t>;

constexpr int SQUARE = SIDE * SIDE;
constexpr int MOST = 4;  // squares whose products are added up before they are stored
static_assert(HALF % LANES == 0);

using Lanes = std::make_integer_sequence<int, LANES>;

constexpr int64_t pieces(int64_t count) { return (count + SIDE - 1) / SIDE; }

// The first or the last halves of two vectors, lane by lane in turn.
template <int... LANE>
words alternated(words a, words b, bool first, std::integer_sequence<int, LANE...>) {
    return first ? __builtin_shufflevector(a, b, (LANE / 2 + LANE % 2 * LANES)...)
                 : __builtin_shufflevector(a, b, (LANES / 2 + LANE / 2 + LANE % 2 * LANES)...);
}

// The lanes moved up by one; the last of `below` comes in.
template <int... LANE>
floats moved_up(floats value, floats below, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(below, value, (LANES - 1 + LANE)...);
}

// [rows x columns] words, transposed. Rows r and r + n / 2 in turn, log2 n times, transpose n x n: every time
// the bits of a place, those of its row and its column together, turn by one.
void turn(const void* from, int rows, int columns, void* to) {
    const auto *source = static_cast<const uint32_t*>(from);
    auto* target = static_cast<uint32_t*>(to);
    for (int row = 0; row < rows; row += LANES)
        for (int column = 0; column < columns; column += LANES) {
            words lines[LANES], next[LANES];
            for (int n = 0; n < LANES; ++n) lines[n] = read<words>(source + (row + n) * columns + column);
            for (int round = 1; round < LANES; round *= 2) {
                for (int n = 0; n < LANES / 2; ++n) {
                    next[2 * n] = alternated(lines[n], lines[n + LANES / 2], true, Lanes{});
                    next[2 * n + 1] = alternated(lines[n], lines[n + LANES / 2], false, Lanes{});
                }
                for (int n = 0; n < LANES; ++n) lines[n] = next[n];
            }
            for (int n = 0; n < LANES; ++n) write(target + (column + n) * rows + row, lines[n]);
        }
}

// A left panel of a square.
void to_left(const float* square, uint32_t* panel) {
    auto* numbers = reinterpret_cast<char*>(panel);
    for (int n = 0; n < SQUARE; n += LANES)
        write(numbers + 2 * n, __builtin_convertvector(rounded(load(square + n)), halves));
}

// The right panel of the same square as a left one.
void to_right(const uint32_t* left, uint32_t* right) {
    const auto* numbers = reinterpret_cast<const uint16_t*>(left);
    for (int row = 0; row < HALF; ++row)
        for (int c = 0; c < SIDE; c += LANES) {
            const uint16_t* even = numbers + 2 * row * SIDE + c;
            write(right + row * SIDE + c, widened(even) | (widened(even + SIDE) << 16));
        }
}

// The rows of one head, as its places in a tensor.
struct Rows {
    const Tensor& tensor;
    int64_t b, h, tokens, width;
    uint16_t* at(int64_t token) const {
        return tensor.data + b * tensor.batch + h * tensor.heads + token * tensor.tokens;
    }
    int64_t strips() const { return pieces(tokens); }
    int64_t across() const { return pieces(width); }
};

// As many of 32 numbers as there are. All of them are the usual case, and the fast one.
inline void copy_numbers(int64_t count, const void* from, void* to) {
    if (count >= SIDE)
        std::memcpy(to, from, SIDE * 2);
    else
        std::memcpy(to, from, size_t(count) * 2);
}

// Left panels [across][strips] of the rows; what is beyond tokens and width stays zero.
void pack(const Rows& rows, uint32_t* panels) {
    for (int64_t token = 0; token < rows.tokens; ++token)
        for (int64_t column = 0; column < rows.width; column += SIDE) {
            uint32_t* panel = panels + (column / SIDE * rows.strips() + token / SIDE) * PANEL;
            copy_numbers(rows.width - column, rows.at(token) + column, panel + token % SIDE * HALF);
        }
}

// Right panels [across][strips] of the same.
void pair(int64_t panels, const uint32_t* left, uint32_t* right) {
    for (int64_t n = 0; n < panels; ++n) to_right(left + n * PANEL, right + n * PANEL);
}

// Panels [strips][across] of the transposed, from panels [across][strips]: right ones of left ones, left ones of
// right ones.
void transpose(int64_t across, int64_t strips, bool left, const uint32_t* from, uint32_t* to) {
    for (int64_t column = 0; column < across; ++column)
        for (int64_t strip = 0; strip < strips; ++strip)
            turn(from + (column * strips + strip) * PANEL, left ? SIDE : HALF, left ? HALF : SIDE,
                 to + (strip * across + column) * PANEL);
}

void transpose(const Rows& rows, bool left, const uint32_t* from, uint32_t* to) {
    transpose(rows.across(), rows.strips(), left, from, to);
}

// Squares [across], tokens x columns, become the rows of a strip.
void unpack(const float* squares, float factor, int64_t strip, const Rows& rows) {
    for (int64_t token = strip * SIDE; token < std::min(rows.tokens, (strip + 1) * SIDE); ++token)
        for (int64_t column = 0; column < rows.width; column += SIDE) {
            const float* line = squares + column / SIDE * SQUARE + token % SIDE * SIDE;
            uint16_t numbers[SIDE];
            for (int c = 0; c < SIDE; c += LANES)
                write(numbers + c, __builtin_convertvector(rounded(load(line + c) * factor), halves));
            copy_numbers(rows.width - column, numbers, rows.at(token) + column);
        }
}

// What both passes of one head read, in a thread's own memory.
struct Head {
    explicit Head(const Shape& shape)
        : first_key(shape.first_key),
          scale(shape.scale),
          tokens(shape.tokens),
          strips(pieces(tokens)),
          across(pieces(shape.width)),
          value_across(pieces(shape.value_width)),
          query_rows(strips * across * PANEL),
          query_turned(strips * across * PANEL),
          key_rows(strips * across * PANEL),
          value_rows(strips * value_across * PANEL),
          rising((strips + 2) * SIDE),
          ends(strips * SIDE) {
        int64_t query = 0;
        for (int64_t key = 0; key < strips * SIDE; ++key) {
            while (query < tokens && first_key(query) <= key) ++query;
            *ends.at(key) = query < tokens ? query : strips * SIDE;
        }
    }

    void read_head(const Rows& q, const Rows& k, const Rows& v, const float* bias) {
        pack(q, query_rows.at(0));
        transpose(q, true, query_rows.at(0), query_turned.at(0));
        pack(k, key_rows.at(0));
        pack(v, value_rows.at(0));
        if (bias != nullptr) std::copy_n(bias + q.h * tokens, tokens, rising.at(SIDE));
    }

    // The logits of a square, minus infinity for keys after the query and before the first that it sees.
    void logits(int64_t key, int64_t query, float* square) const {
        product<false>(across, key_rows.at(key * PANEL), strips, query_turned.at(query * across * PANEL),
                       square);
        for (int j = 0; j < SIDE; ++j) {
            const float* bias = rising.at((query - key + 1) * SIDE - j);
            float* line = square + j * SIDE;
            for (int c = 0; c < SIDE; c += LANES) store(line + c, load(line + c) * scale + load(bias + c));
            if (key == query) std::fill_n(line, j, NEVER);
            const int64_t end = *ends.at(key * SIDE + j) - query * SIDE;
            if (end < SIDE) std::fill(line + std::max<int64_t>(end, 0), line + SIDE, NEVER);
        }
    }

    const FirstKeys first_key;
    const Instructions instructions{};
    const float scale;
    const int64_t tokens, strips, across, value_across;
    Words query_rows, query_turned, key_rows, value_rows;
    Floats rising;  // entry SIDE + d is the bias of distance d
    Buffer<int64_t> ends;  // of each key, the first later query that does not see it, else strips * SIDE
};

struct Forward : Head {
    explicit Forward(const Shape& shape)
        : Head(shape),
          value_paired(strips * value_across * PANEL),
          value_turned(strips * value_across * PANEL),
          scores(MOST * SQUARE),
          weights(MOST * PANEL),
          sums(value_across * SQUARE),
          turned(value_across * SQUARE) {}

    void head(const Shape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const float* bias,
              const Tensor& out, float* normalizers, int64_t b, int64_t h, Part part) {
        const Rows value{v, b, h, tokens, shape.value_width};
        const Rows output{out, b, h, tokens, shape.value_width};
        read_head({q, b, h, tokens, shape.width}, {k, b, h, tokens, shape.width}, value, bias);
        pair(strips * value_across, value_rows.at(0), value_paired.at(0));
        transpose(value, false, value_paired.at(0), value_turned.at(0));
        for (int64_t query = part.first; query < strips; query += part.count) {
            std::fill_n(largest, SIDE, NEVER);
            std::fill_n(sum, SIDE, 0.0f);
            std::fill_n(sums.at(0), value_across * SQUARE, 0.0f);
            for (int64_t key = first_key(query * SIDE) / SIDE; key <= query; key += MOST)
                attend(query, key, std::min<int64_t>(MOST, query + 1 - key));
            finish(query, output, Normalizers(shape, normalizers, b, h));
        }
    }

   private:
    void attend(int64_t query, int64_t key, int64_t squares) {
        for (int64_t n = 0; n < squares; ++n) logits(key + n, query, scores.at(n * SQUARE));
        for (int c = 0; c < SIDE; c += LANES) weigh(c, int(squares) * SIDE);
        for (int64_t part = 0; part < value_across; ++part)
            product<true>(squares, value_turned.at((key * value_across + part) * PANEL), value_across,
                          weights.at(0), sums.at(part * SQUARE));
    }

    // Logits of some queries to weights relative to the largest logit so far.
    void weigh(int c, int keys) {
        floats most = load(largest + c);
        for (int j = 0; j < keys; ++j) most = larger(most, load(scores.at(j * SIDE + c)));
        // The bias may forbid all of them.
        const floats shift = most == NEVER ? floats{} : most;
        floats added{};
        for (int j = 0; j < keys; j += 2) {
            const floats even = exp_of_nonpositive(load(scores.at(j * SIDE + c)) - shift);
            const floats odd = exp_of_nonpositive(load(scores.at((j + 1) * SIDE + c)) - shift);
            added += even + odd;
            write(weights.at(j / 2 * SIDE + c), rounded(even) | (rounded(odd) << 16));
        }
        const floats shrink = exp_of_nonpositive(load(largest + c) - shift);
        store(sum + c, load(sum + c) * shrink + added);
        store(largest + c, most);
        for (int64_t row = 0; row < value_across * SIDE; ++row) {
            float* place = sums.at(row * SIDE + c);
            store(place, load(place) * shrink);
        }
    }

    void finish(int64_t query, const Rows& output, Normalizers<float> normalizers) {
        for (int c = 0; c < SIDE; c += LANES) {
            const floats factor = 1.0f / load(sum + c);
            for (int64_t row = 0; row < value_across * SIDE; ++row) {
                float* place = sums.at(row * SIDE + c);
                store(place, load(place) * factor);
            }
        }
        for (int64_t part = 0; part < value_across; ++part)
            turn(sums.at(part * SQUARE), SIDE, SIDE, turned.at(part * SQUARE));
        unpack(turned.at(0), 1, query, output);
        for (int64_t i = query * SIDE; i < std::min(tokens, (query + 1) * SIDE); ++i) {
            normalizers.largest[i] = largest[i % SIDE];
            normalizers.factor[i] = 1 / sum[i % SIDE];
        }
    }

    Words value_paired, value_turned;
    Floats scores;
    Words weights;
    Floats sums, turned;
    float largest[SIDE], sum[SIDE];
};

struct Backward : Head {
    explicit Backward(const Shape& shape)
        : Head(shape),
          query_paired(strips * across * PANEL),
          key_paired(strips * across * PANEL),
          key_turned(strips * across * PANEL),
          out_rows(strips * value_across * PANEL),
          slope_rows(strips * value_across * PANEL),
          slope_paired(strips * value_across * PANEL),
          slope_turned(strips * value_across * PANEL),
          weights(MOST * PANEL),
          changes(MOST * PANEL),
          change_paired(PANEL),
          query_gradient(strips * across * SQUARE),
          key_gradient(across * SQUARE),
          value_gradient(value_across * SQUARE),
          rising_gradient((strips + 2) * SIDE),
          scores(SQUARE),
          change(SQUARE),
          largest(strips * SIDE),
          factors(strips * SIDE),
          own(strips * SIDE) {}

    // `slope` is the gradient of the output.
    void head(const Shape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const float* bias,
              const Tensor& out, const float* normalizers, const Tensor& slope_of, const Tensor& dq,
              const Tensor& dk, const Tensor& dv, float* bias_gradient, int64_t b, int64_t h) {
        const int64_t width = shape.width, value_width = shape.value_width;
        const int64_t place = (b * shape.heads + h) * tokens;
        const Rows query{q, b, h, tokens, width}, key{k, b, h, tokens, width};
        const Rows slope{slope_of, b, h, tokens, value_width};
        read_head(query, key, {v, b, h, tokens, value_width}, bias);
        pair(strips * across, query_rows.at(0), query_paired.at(0));
        pair(strips * across, key_rows.at(0), key_paired.at(0));
        transpose(key, false, key_paired.at(0), key_turned.at(0));
        pack(slope, slope_rows.at(0));
        pair(strips * value_across, slope_rows.at(0), slope_paired.at(0));
        transpose(slope, true, slope_rows.at(0), slope_turned.at(0));
        pack({out, b, h, tokens, value_width}, out_rows.at(0));
        for (int64_t first = 0; first < strips * SIDE; first += LANES) sum_products(first);
        const Normalizers of_head(shape, normalizers, b, h);
        std::copy_n(of_head.largest, tokens, largest.at(0));
        std::copy_n(of_head.factor, tokens, factors.at(0));
        std::fill(largest.at(tokens), largest.at(strips * SIDE), -NEVER);  // no weights beyond the tokens
        std::fill(factors.at(tokens), factors.at(strips * SIDE), 0.0f);
        std::fill_n(query_gradient.at(0), strips * across * SQUARE, 0.0f);
        std::fill_n(rising_gradient.at(0), (strips + 2) * SIDE, 0.0f);
        for (int64_t strip = 0; strip < strips; ++strip) {
            std::fill_n(key_gradient.at(0), across * SQUARE, 0.0f);
            std::fill_n(value_gradient.at(0), value_across * SQUARE, 0.0f);
            const int64_t last_key = (strip + 1) * SIDE - 1;
            const int64_t seeing = pieces(*ends.at(last_key));  // the strips of queries that see a key of this one
            for (int64_t first = strip; first < seeing; first += MOST)
                add(strip, first, std::min<int64_t>(MOST, seeing - first));
            unpack(key_gradient.at(0), scale, strip, {dk, b, h, tokens, width});
            unpack(value_gradient.at(0), 1, strip, {dv, b, h, tokens, value_width});
        }
        for (int64_t strip = 0; strip < strips; ++strip) {
            for (int64_t part = 0; part < across; ++part)
                turn(query_gradient.at((strip * across + part) * SQUARE), SIDE, SIDE,
                     key_gradient.at(part * SQUARE));
            unpack(key_gradient.at(0), scale, strip, {dq, b, h, tokens, width});
        }
        if (bias_gradient != nullptr) std::copy_n(rising_gradient.at(SIDE), tokens, bias_gradient + place);
    }

   private:
    // sum_j w_ij dw_ij = out_i . dout_i, of as many queries as there are lanes.
    void sum_products(int64_t first) {
        float partial[LANES * LANES], turned[LANES * LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            floats products{};
            for (int64_t part = 0; part < value_across; ++part) {
                const int64_t line = (part * strips * SIDE + first + lane) * HALF;
                const auto* a = reinterpret_cast<const uint16_t*>(out_rows.at(line));
                const auto* b = reinterpret_cast<const uint16_t*>(slope_rows.at(line));
                for (int c = 0; c < SIDE; c += LANES)
                    products += number_of(widened(a + c)) * number_of(widened(b + c));
            }
            store(partial + lane * LANES, products);
        }
        turn(partial, LANES, LANES, turned);
        floats sum{};
        for (int lane = 0; lane < LANES; ++lane) sum += load(turned + lane * LANES);
        store(own.at(first), sum);
    }

    // All that some squares of the same keys add to the gradients.
    void add(int64_t key, int64_t first, int64_t squares) {
        for (int64_t n = 0; n < squares; ++n)
            differentiate(key, first + n, weights.at(n * PANEL), changes.at(n * PANEL));
        for (int64_t part = 0; part < value_across; ++part)
            product<true>(squares, weights.at(0), 1, slope_paired.at((part * strips + first) * PANEL),
                          value_gradient.at(part * SQUARE));
        for (int64_t part = 0; part < across; ++part)
            product<true>(squares, changes.at(0), 1, query_paired.at((part * strips + first) * PANEL),
                          key_gradient.at(part * SQUARE));
    }

    // The weights of a square and the gradients of its logits, and what these add to the queries' and bias's.
    void differentiate(int64_t key, int64_t query, uint32_t* weight_panel, uint32_t* change_panel) {
        logits(key, query, scores.at(0));
        product<false>(value_across, value_rows.at(key * PANEL), strips,
                       slope_turned.at(query * value_across * PANEL), change.at(0));
        for (int c = 0; c < SIDE; c += LANES) {
            const int64_t first = query * SIDE + c;
            const floats shift = load(largest.at(first)), factor = load(factors.at(first));
            const floats mean = load(own.at(first));
            for (int place = c; place < SQUARE; place += SIDE) {
                const floats weight = factor * exp_of_nonpositive(load(scores.at(place)) - shift);
                const floats product_of_both = weight * (load(change.at(place)) - mean);
                store(scores.at(place), weight);
                // The gradient of a weight that is not there may be no number.
                store(change.at(place), weight == 0.0f ? floats{} : product_of_both);
            }
        }
        to_left(scores.at(0), weight_panel);
        to_left(change.at(0), change_panel);
        to_right(change_panel, change_paired.at(0));
        for (int64_t part = 0; part < across; ++part)
            product<true>(1, key_turned.at((key * across + part) * PANEL), 0, change_paired.at(0),
                          query_gradient.at((query * across + part) * SQUARE));
        add_distances(rising_gradient.at((query - key) * SIDE + 1));
    }

    // The sums along the diagonals of `change`, where lane c of row j has distance c - j: one row after the
    // other is added, and then all lanes move up. The last one's sum is finished; what is stored below it is
    // stored again.
    void add_distances(float* gradient) {
        constexpr int VECTORS = SIDE / LANES;
        float sums[2 * SIDE] = {};
        floats running[VECTORS] = {};
        for (int j = 0; j < SIDE; ++j) {
            for (int n = VECTORS - 1; n > 0; --n) running[n] = moved_up(running[n], running[n - 1], Lanes{});
            running[0] = moved_up(running[0], floats{}, Lanes{});
            for (int n = 0; n < VECTORS; ++n) running[n] += load(change.at(j * SIDE + n * LANES));
            store(sums + 2 * SIDE - 1 - j - LANES, running[VECTORS - 1]);
        }
        for (int n = 0; n < VECTORS; ++n) store(sums + n * LANES, running[n]);
        for (int n = 0; n < 2 * SIDE; n += LANES) store(gradient + n, load(gradient + n) + load(sums + n));
    }

    Words query_paired, key_paired, key_turned, out_rows, slope_rows, slope_paired, slope_turned, weights,
        changes, change_paired;
    Floats query_gradient, key_gradient, value_gradient, rising_gradient, scores, change, largest, factors, own;
};

}  // namespace

extern "C" {

// Once a process, before the first pass: 0 where the system permits the instructions, or else why not.
int pe_bench_permit() { return permit_instructions(); }
}

#include "entries.h"
#include "muon_bfloat16.h"
