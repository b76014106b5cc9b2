// Products of squares of bfloat16 with sums in float32: by the tiles of AMX (tiles.h), or with DOT_PRODUCTS by
// the dot products of AVX-512 (AVX512_BF16).
//
// A square of 32 x 32 numbers is a panel of 512 words, two numbers in each:
//
//   left panel   [32][16]: 32 rows; the pairs are neighbours in a row
//   right panel  [16][32]: 32 columns; the pairs are neighbours in a column
//
// Both ways define
//
//   Instructions            the setup of a thread, which its destructor gives back
//   permit_instructions()   called once a process: 0 if the system permits the instructions, or else why not
//   product<ADD>(steps, left, left_step, right, c)
//                           c = left right, or c += left right with ADD, for c [32 x 32], left [32 x 32 steps] and
//                           right [32 steps x 32]; panels of left are `left_step` panels apart
#pragma once

#include <cstdint>

namespace {

constexpr int SIDE = 32, HALF = SIDE / 2;
constexpr int PANEL = SIDE * HALF;

}  // namespace

#ifdef DOT_PRODUCTS

#include <immintrin.h>

namespace {

struct Instructions {};

inline int permit_instructions() { return 0; }

template <bool ADD>
void product(int64_t steps, const uint32_t* left, int64_t left_step, const uint32_t* right, float* c) {
    constexpr int LANES_OF_SUMS = 16, ACROSS = SIDE / LANES_OF_SUMS;
    constexpr int DOWN = 8;  // of 32 registers, 16 (8 x 2) hold sums and 3 hold operands
    for (int row = 0; row < SIDE; row += DOWN) {
        float* c_rows = c + row * SIDE;
        __m512 sums[DOWN][ACROSS];
        for (int r = 0; r < DOWN; ++r)
            for (int v = 0; v < ACROSS; ++v) {
                const float* from = c_rows + r * SIDE + v * LANES_OF_SUMS;
                sums[r][v] = ADD ? _mm512_loadu_ps(from) : _mm512_setzero_ps();
            }
        for (int64_t step = 0; step < steps; ++step) {
            const uint32_t* left_rows = left + step * left_step * PANEL + row * HALF;
            const uint32_t* right_panel = right + step * PANEL;
            for (int pair = 0; pair < HALF; ++pair) {
                __m512bh columns[ACROSS];
                for (int v = 0; v < ACROSS; ++v)
                    columns[v] = (__m512bh)_mm512_loadu_si512(right_panel + pair * SIDE + v * LANES_OF_SUMS);
                for (int r = 0; r < DOWN; ++r) {
                    const auto left_pair = (__m512bh)_mm512_set1_epi32(int(left_rows[r * HALF + pair]));
                    for (int v = 0; v < ACROSS; ++v)
                        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left_pair, columns[v]);
                }
            }
        }
        for (int r = 0; r < DOWN; ++r)
            for (int v = 0; v < ACROSS; ++v)
                _mm512_storeu_ps(c_rows + r * SIDE + v * LANES_OF_SUMS, sums[r][v]);
    }
}

}  // namespace

#else

#include "tiles.h"

namespace {

using Instructions = Tiles;

inline int permit_instructions() { return permit_tiles(); }

template <bool ADD>
void product(int64_t steps, const uint32_t* left, int64_t left_step, const uint32_t* right, float* c) {
    constexpr int64_t ROW = SIDE * sizeof(float), LEFT_ROW = HALF * sizeof(uint32_t);
    float* below = c + HALF * SIDE;  // 2 x 2 tiles hold sums
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
