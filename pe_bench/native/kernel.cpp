// Causal attention with a bias of the distance, forward and backward, in float32.
//
//   z_ij = scale q_i . k_j + bias[i - j]   for first_key(i) <= j <= i,    out_i = sum_j softmax(z_i)_j v_j
//
// Blocks of queries meet blocks of keys as in FlashAttention (Dao et al. 2022, arXiv:2205.14135, algorithm 1;
// Dao 2023, arXiv:2307.08691), so that no more than a block of scores exists at a time. The bias is a vector
// that is read backwards: for one query, neighbouring keys have neighbouring entries of it, and the gradient
// is added up the same way.
//
// One thread does a piece of work from its beginning to its end: a head of a batch or, in the forward pass, some of
// a head's blocks of queries. Gradients of the bias are added over the batch afterwards, in order. So results do not
// depend on the number of threads.

#include "common.h"

namespace {

using Tensor = Strided<float>;
using Floats = Buffer<float>;

// A tile of a product that stays in registers: 6 x 2 vectors, with 3 more for the operands, of 16.
constexpr int ROWS = 6, COLUMNS = 2 * LANES;
constexpr int QUERIES = 48, KEYS = 128;  // of a block; KEYS is a multiple of COLUMNS
static_assert(KEYS % COLUMNS == 0);

// c[R x V vectors] = or += a[R x depth] b[depth x V vectors]
template <int R, int V, bool ADD>
inline void tile(int depth, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                 float* c, int64_t c_row) {
    floats sum[R][V];
    for (int i = 0; i < R; ++i)
        for (int v = 0; v < V; ++v) sum[i][v] = ADD ? load(c + i * c_row + v * LANES) : floats{};
    for (int d = 0; d < depth; ++d) {
        floats row[V];
        for (int v = 0; v < V; ++v) row[v] = load(b + d * b_row + v * LANES);
        for (int i = 0; i < R; ++i) {
            const float factor = a[i * a_row + d * a_column];
            for (int v = 0; v < V; ++v) sum[i][v] += factor * row[v];
        }
    }
    for (int i = 0; i < R; ++i)
        for (int v = 0; v < V; ++v) store(c + i * c_row + v * LANES, sum[i][v]);
}

template <int V, bool ADD>
inline void tile_of(int rows, int depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                    int64_t b_row, float* c, int64_t c_row) {
    switch (rows) {
        case 1: return tile<1, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
        case 2: return tile<2, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
        case 3: return tile<3, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
        case 4: return tile<4, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
        case 5: return tile<5, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
        default: tile<6, V, ADD>(depth, a, a_row, a_column, b, b_row, c, c_row);
    }
}

// `columns` are whole vectors: two for each tile, and one for the last where one is left.
template <bool ADD>
inline void strip(int rows, int depth, const float* a, int64_t a_row, int64_t a_column, const float* b,
                  int64_t b_row, float* c, int64_t c_row, int columns) {
    int j = 0;
    for (; j + COLUMNS <= columns; j += COLUMNS)
        tile_of<2, ADD>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row);
    if (j < columns) tile_of<1, ADD>(rows, depth, a, a_row, a_column, b + j, b_row, c + j, c_row);
}

// `width` in whole vectors.
constexpr int64_t padded(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

struct Block {
    int64_t query, key;  // the first of each
    int queries, keys;   // how many
    // Of the block's keys, how many its first n queries may see between them.
    int seen(int n) const { return int(std::clamp<int64_t>(query + n - key, 0, keys)); }
    // How many entries of query i's row the products read, whole vectors of them.
    int row_end(int i) const { return std::min(KEYS, int(padded(seen(i + 1) + ROWS))); }
    // Of the block's queries, how many come before its key number j and may not see it.
    int unseeing(int j) const { return int(std::clamp<int64_t>(key + j - query, 0, queries)); }
};

// scores[queries x KEYS] = rows . transposed keys; entries after the last visible key of a strip are left.
void score(const Block& block, int width, const float* rows, int64_t row, const float* transposed,
           float* scores) {
    for (int i = 0; i < block.queries; i += ROWS) {
        const int count = std::min(ROWS, block.queries - i);
        strip<false>(count, width, rows + i * row, row, 1, transposed, KEYS, scores + i * KEYS, KEYS,
                     int(padded(block.seen(i + count))));
    }
}

// sums[queries x width] += weights . rows of the keys
void mix(const Block& block, const float* weights, const float* rows, int64_t width, float* sums) {
    for (int i = 0; i < block.queries; i += ROWS) {
        const int count = std::min(ROWS, block.queries - i);
        strip<true>(count, block.seen(i + count), weights + i * KEYS, KEYS, 1, rows, width, sums + i * width,
                    width, int(width));
    }
}

// sums[keys x width] += weights, transposed . rows of the queries
void mix_transposed(const Block& block, const float* weights, const float* rows, int64_t width, float* sums) {
    for (int j = 0; j < block.keys; j += ROWS) {
        const int first = block.unseeing(j);
        strip<true>(std::min(ROWS, block.keys - j), block.queries - first, weights + first * KEYS + j, 1,
                    KEYS, rows + first * width, width, sums + j * width, width, int(width));
    }
}

// The tokens of one head as rows of `row` floats, times `factor`; what is beyond `width` stays zero.
void pack(const Tensor& from, int64_t b, int64_t h, int64_t tokens, int64_t width, float factor, float* to,
          int64_t row) {
    const int64_t first = from.columns_width;
    if (first > 0) pack(*from.columns, b, h, tokens, first, 1, to, row);
    for (int64_t t = 0; t < tokens; ++t) {
        const float* source = from.data + b * from.batch + h * from.heads + t * from.tokens;
        for (int64_t c = first; c < width; ++c) to[t * row + c] = factor * source[c - first];
    }
}

// Blocks [width x KEYS] of the same rows, transposed.
void transpose(const float* rows, int64_t tokens, int64_t width, int64_t row, float* to) {
    for (int64_t t = 0; t < tokens; ++t) {
        float* block = to + t / KEYS * KEYS * width + t % KEYS;
        for (int64_t c = 0; c < width; ++c) block[c * KEYS] = rows[t * row + c];
    }
}

void unpack(const float* rows, int64_t row, int64_t tokens, int64_t width, float factor, const Tensor& to,
            int64_t b, int64_t h) {
    const int64_t first = to.columns_width;
    if (first > 0) unpack(rows, row, tokens, first, 1, *to.columns, b, h);
    for (int64_t t = 0; t < tokens; ++t) {
        float* target = to.data + b * to.batch + h * to.heads + t * to.tokens;
        for (int64_t c = first; c < width; ++c) target[c - first] = factor * rows[t * row + c];
    }
}

// What both passes of one head read, in a thread's own memory.
struct Head {
    explicit Head(const Shape& shape)
        : first_key(shape.first_key),
          tokens(shape.tokens),
          width(shape.width),
          row(padded(shape.width)),
          value_row(padded(shape.value_width)),
          blocks((tokens + KEYS - 1) / KEYS * KEYS),
          query(tokens * row),
          key_transposed(blocks * width),
          falling(tokens + KEYS),
          scores(QUERIES * KEYS) {}

    void read(const Shape& shape, const Tensor& q, const float* keys, const float* bias, int64_t b,
              int64_t h) {
        pack(q, b, h, tokens, width, shape.scale, query.at(0), row);
        transpose(keys, tokens, width, row, key_transposed.at(0));
        if (bias != nullptr)
            for (int64_t distance = 0; distance < tokens; ++distance)
                *falling.at(tokens - 1 - distance) = bias[h * tokens + distance];
    }

    // The logits of a block, minus infinity for keys after the query and before the first that it sees.
    void logits(const Block& block) {
        score(block, int(width), query.at(block.query * row), row, key_transposed.at(block.key * width),
              scores.at(0));
        for (int i = 0; i < block.queries; ++i) {
            float* line = scores.at(i * KEYS);
            const float* bias = falling_at(block, i);
            const int seen = block.seen(i + 1);
            for (int j = 0; j < padded(seen); j += LANES) store(line + j, load(line + j) + load(bias + j));
            for (int j = seen; j < block.row_end(i); ++j) line[j] = NEVER;
            const int64_t hidden = first_key(block.query + i) - block.key;
            if (hidden > 0) std::fill_n(line, std::min<int64_t>(hidden, seen), NEVER);
        }
    }

    // Entry j belongs to the block's query i and key j.
    float* falling_at(const Block& block, int i) {
        return falling.at(tokens - 1 - (block.query + i) + block.key);
    }

    template <class Visit>
    void each_block_of(int64_t first, Visit visit) const {
        const int queries = int(std::min<int64_t>(QUERIES, tokens - first));
        for (int64_t key = first_key(first) / KEYS * KEYS; key < first + queries; key += KEYS)
            visit(Block{first, key, queries, int(std::min<int64_t>(KEYS, tokens - key))});
    }

    const FirstKeys first_key;
    const int64_t tokens, width, row, value_row, blocks;
    Floats query, key_transposed, falling, scores;
};

struct Forward : Head {
    explicit Forward(const Shape& shape)
        : Head(shape), key(tokens * row), value(tokens * value_row), sums(QUERIES * value_row) {}

    void head(const Shape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const float* bias,
              const Tensor& out, float* normalizers, int64_t b, int64_t h, Part part) {
        pack(k, b, h, tokens, width, 1, key.at(0), row);
        pack(v, b, h, tokens, shape.value_width, 1, value.at(0), value_row);
        read(shape, q, key.at(0), bias, b, h);
        for (int64_t first = part.first * QUERIES; first < tokens; first += part.count * QUERIES) {
            std::fill_n(largest, QUERIES, NEVER);
            std::fill_n(sum, QUERIES, 0.0f);
            std::memset(sums.at(0), 0, size_t(QUERIES * value_row) * 4);
            each_block_of(first, [&](const Block& block) {
                logits(block);
                weigh(block);
                mix(block, scores.at(0), value.at(block.key * value_row), value_row, sums.at(0));
            });
            write(shape, out, Normalizers(shape, normalizers, b, h), b, h, first);
        }
    }

   private:
    // Logits to weights relative to the largest logit of each query so far.
    void weigh(const Block& block) {
        for (int i = 0; i < block.queries; ++i) {
            float* line = scores.at(i * KEYS);
            const int end = block.row_end(i);
            floats most = load(line);
            for (int j = LANES; j < end; j += LANES) most = larger(most, load(line + j));
            const float now = std::max(largest[i], largest_of(most));
            // No key of this block is seen by this query; or the bias forbids all of them.
            const float shift = now == NEVER ? 0.0f : now;
            floats added{};
            for (int j = 0; j < end; j += LANES) {
                const floats weight = exp_of_nonpositive(load(line + j) - shift);
                store(line + j, weight);
                added += weight;
            }
            const float shrink = std::exp(largest[i] - shift);
            sum[i] = sum[i] * shrink + sum_of(added);
            largest[i] = now;
            if (shrink != 1.0f)
                for (int64_t c = 0; c < value_row; c += LANES) {
                    float* place = sums.at(i * value_row + c);
                    store(place, load(place) * shrink);
                }
        }
    }

    void write(const Shape& shape, const Tensor& out, Normalizers<float> normalizers, int64_t b, int64_t h,
               int64_t first) {
        for (int64_t i = 0; i < std::min<int64_t>(QUERIES, tokens - first); ++i) {
            const Tensor row_of_out{out.data + (first + i) * out.tokens, out.batch, out.heads, out.tokens};
            unpack(sums.at(i * value_row), value_row, 1, shape.value_width, 1 / sum[i], row_of_out, b, h);
            normalizers.largest[first + i] = largest[i];
            normalizers.factor[first + i] = 1 / sum[i];
        }
    }

    Floats key, value, sums;
    float largest[QUERIES], sum[QUERIES];
};

struct Backward : Head {
    explicit Backward(const Shape& shape)
        : Head(shape),
          key(tokens * row),
          value(tokens * value_row),
          value_transposed(blocks * shape.value_width),
          slope(tokens * value_row),
          query_gradient(tokens * row),
          key_gradient(tokens * row),
          value_gradient(tokens * value_row),
          falling_gradient(tokens + KEYS),
          score_gradient(QUERIES * KEYS),
          own(tokens) {}

    // `slope` is the gradient of the output.
    void head(const Shape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const float* bias,
              const Tensor& out, const float* normalizers, const Tensor& slope_of, const Tensor& dq,
              const Tensor& dk, const Tensor& dv, float* bias_gradient, int64_t b, int64_t h) {
        const int64_t value_width = shape.value_width;
        pack(k, b, h, tokens, width, 1, key.at(0), row);
        pack(v, b, h, tokens, value_width, 1, value.at(0), value_row);
        pack(slope_of, b, h, tokens, value_width, 1, slope.at(0), value_row);
        read(shape, q, key.at(0), bias, b, h);
        transpose(value.at(0), tokens, value_width, value_row, value_transposed.at(0));
        std::memset(query_gradient.at(0), 0, size_t(tokens * row) * 4);
        std::memset(key_gradient.at(0), 0, size_t(tokens * row) * 4);
        std::memset(value_gradient.at(0), 0, size_t(tokens * value_row) * 4);
        std::memset(falling_gradient.at(0), 0, size_t(tokens + KEYS) * 4);
        // sum_j w_ij dw_ij = out_i . dout_i, of several tokens at once: each sum waits for itself.
        const float* output = out.data + b * out.batch + h * out.heads;
        int64_t t = 0;
        for (; t + 8 <= tokens; t += 8) products<8>(output + t * out.tokens, out.tokens, t, value_width);
        for (; t < tokens; ++t) products<1>(output + t * out.tokens, out.tokens, t, value_width);
        const Normalizers of_head(shape, normalizers, b, h);
        of_bias = bias_gradient != nullptr;
        for (int64_t first = 0; first < tokens; first += QUERIES)
            each_block_of(first, [&](const Block& block) { add(block, of_head, int(value_width)); });
        unpack(query_gradient.at(0), row, tokens, width, shape.scale, dq, b, h);
        unpack(key_gradient.at(0), row, tokens, width, 1, dk, b, h);
        unpack(value_gradient.at(0), value_row, tokens, value_width, 1, dv, b, h);
        if (bias_gradient != nullptr)
            for (int64_t distance = 0; distance < tokens; ++distance)
                bias_gradient[(b * shape.heads + h) * tokens + distance] =
                    *falling_gradient.at(tokens - 1 - distance);
    }

   private:
    template <int COUNT>
    void products(const float* output, int64_t row, int64_t t, int64_t value_width) {
        float product[COUNT] = {};
        const float* gradient = slope.at(t * value_row);
        for (int64_t c = 0; c < value_width; ++c)
            for (int n = 0; n < COUNT; ++n)
                product[n] = multiplied_and_added(output[n * row + c], gradient[n * value_row + c], product[n]);
        std::copy_n(product, COUNT, own.at(t));
    }

    void add(const Block& block, const Normalizers<const float>& normalizers, int value_width) {
        logits(block);
        score(block, value_width, slope.at(block.query * value_row), value_row,
              value_transposed.at(block.key * value_width), score_gradient.at(0));
        for (int i = 0; i < block.queries; ++i) {
            float *line = scores.at(i * KEYS), *gradient = score_gradient.at(i * KEYS);
            float* falling = falling_gradient.at(tokens - 1 - (block.query + i) + block.key);
            const floats largest = all(normalizers.largest[block.query + i]);
            const floats factor = all(normalizers.factor[block.query + i]);
            const floats mean = all(*own.at(block.query + i));
            const int seen = block.seen(i + 1);
            for (int j = seen; j < padded(seen); ++j) gradient[j] = 0;  // may hold what is no number
            for (int j = 0; j < padded(seen); j += LANES) {
                const floats weight = factor * exp_of_nonpositive(load(line + j) - largest);
                const floats change = weight * (load(gradient + j) - mean);
                store(line + j, weight);
                store(gradient + j, change);
                if (of_bias) store(falling + j, load(falling + j) + change);
            }
            // The products below go to the end of a strip of queries.
            for (int64_t j = padded(seen); j < block.row_end(i); ++j) line[j] = gradient[j] = 0;
        }
        mix_transposed(block, scores.at(0), slope.at(block.query * value_row), value_row,
                       value_gradient.at(block.key * value_row));
        mix_transposed(block, score_gradient.at(0), query.at(block.query * row), row,
                       key_gradient.at(block.key * row));
        mix(block, score_gradient.at(0), key.at(block.key * row), row, query_gradient.at(block.query * row));
    }

    Floats key, value, value_transposed, slope, query_gradient, key_gradient, value_gradient,
        falling_gradient, score_gradient, own;
    bool of_bias = false;
};

}  // namespace

#include "entries.h"
#include "layers.h"
#include "muon.h"
#include "recurrence.h"
