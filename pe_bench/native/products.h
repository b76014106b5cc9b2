// Products of squares of bfloat16 with sums in float32, by the instructions that a processor has for them:
//
//   the tiles of AMX (tiles.h), or
//   with DOT_PRODUCTS, the dot products of AVX-512 (AVX512_BF16).
//
// A square of 32 x 32 numbers is a panel of 512 words, two numbers in each:
//
//   left panel   [32][16]: 32 rows; the pairs are neighbours in a row
//   right panel  [16][32]: 32 columns; the pairs are neighbours in a column
#pragma once

#include <cstdint>

namespace {

constexpr int SIDE = 32, HALF = SIDE / 2;
constexpr int PANEL = SIDE * HALF;

}  // namespace

#ifdef DOT_PRODUCTS

#include <immintrin.h>

namespace {

struct Instructions {  // nothing is set up
    Instructions() {}
};

inline int permit_instructions() { return 0; }

// Sums of ROWS rows and of all columns stay in registers: 8 x 2 vectors, with 3 more for the operands, of 32.
constexpr int ROWS = 8, VECTOR = 16, ACROSS = SIDE / VECTOR;

// c[32 x 32] = or += left[32 x 32 steps] right[32 steps x 32]; `left_step` panels lead to the left's next.
template <bool ADD>
void product(int64_t steps, const uint32_t* left, int64_t left_step, const uint32_t* right, float* c) {
    for (int row = 0; row < SIDE; row += ROWS) {
        float* of_c = c + row * SIDE;
        __m512 sums[ROWS][ACROSS];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < ACROSS; ++v)
                sums[r][v] = ADD ? _mm512_loadu_ps(of_c + r * SIDE + v * VECTOR) : _mm512_setzero_ps();
        for (int64_t step = 0; step < steps; ++step) {
            const uint32_t* of_left = left + step * left_step * PANEL + row * HALF;
            const uint32_t* of_right = right + step * PANEL;
            for (int pair = 0; pair < HALF; ++pair) {
                __m512bh columns[ACROSS];
                for (int v = 0; v < ACROSS; ++v)
                    columns[v] = (__m512bh)_mm512_loadu_si512(of_right + pair * SIDE + v * VECTOR);
                for (int r = 0; r < ROWS; ++r) {
                    const auto both = (__m512bh)_mm512_set1_epi32(int(of_left[r * HALF + pair]));
                    for (int v = 0; v < ACROSS; ++v)
                        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], both, columns[v]);
                }
            }
        }
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < ACROSS; ++v) _mm512_storeu_ps(of_c + r * SIDE + v * VECTOR, sums[r][v]);
    }
}

}  // namespace

#else

#include "tiles.h"

namespace {

using Instructions = Tiles;

inline int permit_instructions() { return permit_tiles(); }

// As above. The square is 2 x 2 tiles of sums.
template <bool ADD>
void product(int64_t steps, const uint32_t* left, int64_t left_step, const uint32_t* right, float* c) {
    constexpr int64_t ROW = SIDE * sizeof(float), LEFT_ROW = HALF * sizeof(uint32_t);
    float* below = c + HALF * SIDE;
    if (ADD) {
        tile_load(0, c, ROW);
        tile_load(1, c + HALF, ROW);
        tile_load(2, below, ROW);
        tile_load(3, below + HALF, ROW);
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int64_t step = 0; step < steps; ++step) {
        tile_load(4, left, LEFT_ROW);
        tile_load(5, left + PANEL / 2, LEFT_ROW);
        tile_load(6, right, ROW);
        tile_load(7, right + HALF, ROW);
        tile_dot(0, 4, 6);
        tile_dot(1, 4, 7);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
        left += left_step * PANEL;
        right += PANEL;
    }
    tile_store(0, c, ROW);
    tile_store(1, c + HALF, ROW);
    tile_store(2, below, ROW);
    tile_store(3, below + HALF, ROW);
}

}  // namespace

#endif
