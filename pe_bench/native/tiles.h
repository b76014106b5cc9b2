// The matrix registers of AMX: eight tiles of 16 rows with 64 bytes each, always used whole.
//
//   tile_zero(t)              tile t becomes zero
//   tile_load(t, from, row)   its rows are read from memory, `row` bytes apart
//   tile_store(t, to, row)    and written
//   tile_dot(c, a, b)         c[16 x 16] += a[16 x 32] b[32 x 16]: c is float32, a and b are bfloat16. b has
//                             pairs: row n those of rows 2 n and 2 n + 1 of the matrix that it stands for.
//
// With EMULATED_TILES they are memory, so that what is built from them can be tried on any processor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef EMULATED_TILES

namespace {

thread_local unsigned char tile_bytes[8][16][64];

struct Tiles {  // no numbers at first, so that a use before a load is seen
    Tiles() { std::memset(tile_bytes, 0xff, sizeof tile_bytes); }
};

inline int permit_tiles() { return 0; }

inline void tile_zero(int tile) { std::memset(tile_bytes[tile], 0, sizeof tile_bytes[tile]); }

inline void tile_load(int tile, const void* from, int64_t row) {
    for (int r = 0; r < 16; ++r)
        std::memcpy(tile_bytes[tile][r], static_cast<const char*>(from) + r * row, 64);
}

inline void tile_store(int tile, void* to, int64_t row) {
    for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * row, tile_bytes[tile][r], 64);
}

inline float flushed(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline void widen(const unsigned char* row, float* even, float* odd) {
    uint32_t pairs[16], low[16], high[16];
    std::memcpy(pairs, row, 64);
    for (int n = 0; n < 16; ++n) {
        low[n] = pairs[n] << 16;
        high[n] = pairs[n] & 0xffff0000u;
    }
    std::memcpy(even, low, 64);
    std::memcpy(odd, high, 64);
    for (int n = 0; n < 16; ++n) {
        even[n] = flushed(even[n]);
        odd[n] = flushed(odd[n]);
    }
}

// As "TDPBF16PS" in Intel's manual, volume 2: the products of even and of odd places have sums of their own,
// which start at zero; every step rounds to the nearest, ties to even; denormals are zero, read or written.
inline void tile_dot(int c, int a, int b) {
    for (int m = 0; m < 16; ++m) {
        float left[2][16], right[2][16], sum[2][16] = {}, total[16];
        widen(tile_bytes[a][m], left[0], left[1]);
        for (int k = 0; k < 16; ++k) {
            widen(tile_bytes[b][k], right[0], right[1]);
            for (int half = 0; half < 2; ++half)
                for (int n = 0; n < 16; ++n)
                    sum[half][n] = flushed(std::fma(left[half][k], right[half][n], sum[half][n]));
        }
        std::memcpy(total, tile_bytes[c][m], 64);
        for (int n = 0; n < 16; ++n) total[n] = flushed(flushed(total[n]) + flushed(sum[0][n] + sum[1][n]));
        std::memcpy(tile_bytes[c][m], total, 64);
    }
}

}  // namespace

#else

#include <cerrno>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// As the instruction that sets them up reads it.
struct alignas(64) TileConfiguration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_of_row[16];
    uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);
const TileConfiguration WHOLE_TILES = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Memory is as it is written here: not every compiler knows that the instructions below read it.
inline void settle(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

struct Tiles {  // set up for one thread, and given back
    Tiles() {
        settle(&WHOLE_TILES);
        _tile_loadconfig(&WHOLE_TILES);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
};

// Linux lends tiles to processes that ask (Documentation/arch/x86/xstate.rst). Returns 0, or why not.
inline int permit_tiles() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? 0 : errno;
}

}  // namespace

// The number of a tile is part of the instruction, and must be written out.
#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from, row)     \
    do {                               \
        settle(from);                  \
        _tile_loadd(tile, from, row);  \
    } while (false)
#define tile_store(tile, to, row) _tile_stored(tile, to, row)
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)

#endif
