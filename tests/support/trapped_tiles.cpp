// The instructions of AMX for processors that lack them: each is refused, decoded here, and done in memory.
//
// To be loaded into a process of its own. What is met, and is no such instruction as our kernel has, ends it.
#define EMULATED_TILES
#include "tiles.h"

#include <csignal>
#include <cstdio>
#include <ucontext.h>
#include <unistd.h>

namespace {

using Registers = greg_t*;
thread_local bool is_set_up = false;

[[noreturn]] void refuse(const char* reason, const unsigned char* code) {
    std::fprintf(stderr, "%s:", reason);
    for (int n = 0; n < 10; ++n) std::fprintf(stderr, " %02x", code[n]);
    std::fprintf(stderr, "\n");
    _exit(99);
}

greg_t general(Registers registers, int number) {
    constexpr int NAMES[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return registers[NAMES[number]];
}

int32_t number_at(const unsigned char* code) {
    int32_t number;
    std::memcpy(&number, code, sizeof number);
    return number;
}

// Intel's manual, volume 2, chapter 2: a prefix of three bytes, the code, ModRM, a SIB and a displacement.
struct Instruction {
    Instruction(const unsigned char* start, Registers registers)
        : code(start[3]), prefix(start[2] & 3), next(start + 5) {
        if (start[0] != 0xc4 || (start[1] & 0x1f) != 2 || (start[2] & 0x84) != 0)
            refuse("no tile instruction", start);
        const int mode = start[4] >> 6, low = start[4] & 7;
        first = start[4] >> 3 & 7;
        second = low;
        third = ~(start[2] >> 3) & 15;
        in_memory = mode != 3;
        if (!in_memory) return;
        int base = low, index = 4, scale = 0;
        if (low == 4) {
            scale = *next >> 6;
            index = (*next >> 3 & 7) | (~start[1] >> 3 & 8);
            base = *next++ & 7;
        }
        if (mode == 0 && base == 5) {  // relative to the next instruction
            if (low == 4) refuse("no base", start);
            next += 4;
            address = reinterpret_cast<greg_t>(next) + number_at(next - 4);
        } else {
            address = general(registers, base | (~start[1] >> 2 & 8));
        }
        if (index != 4) row = general(registers, index) << scale;
        if (mode == 1) address += static_cast<signed char>(*next++);
        if (mode == 2) {
            address += number_at(next);
            next += 4;
        }
    }

    int code, prefix, first, second, third;
    bool in_memory;
    greg_t address = 0, row = 0;
    const unsigned char* next;
};

bool is_whole(const unsigned char* configuration) {
    unsigned char expected[64] = {1};
    for (int tile = 0; tile < 8; ++tile) expected[16 + 2 * tile] = 64, expected[48 + tile] = 16;
    return std::memcmp(configuration, expected, sizeof expected) == 0;
}

void set_up(bool is_used) {
    is_set_up = is_used;
    std::memset(tile_bytes, 0xff, sizeof tile_bytes);
}

void obey(int, siginfo_t*, void* context) {
    const Registers registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* start = reinterpret_cast<const unsigned char*>(registers[REG_RIP]);
    const Instruction met(start, registers);
    auto* memory = reinterpret_cast<unsigned char*>(met.address);
    const int kind = met.code << 8 | met.prefix << 4 | met.in_memory;
    if (kind == 0x4901) {
        if (!is_whole(memory)) refuse("tiles are not whole", start);
        set_up(true);
    } else if (!is_set_up) {
        refuse("tiles are not set up", start);
    } else if (kind == 0x4900) {
        set_up(false);
    } else if (kind == 0x4930) {
        tile_zero(met.first);
    } else if (kind == 0x4b31) {
        tile_load(met.first, memory, met.row);
    } else if (kind == 0x4b21) {
        tile_store(met.first, memory, met.row);
    } else if (kind == 0x5c20) {
        tile_dot(met.first, met.second, met.third);
    } else {
        refuse("not known", start);
    }
    registers[REG_RIP] = reinterpret_cast<greg_t>(met.next);
}

[[gnu::constructor]] void catch_refusals() {
    struct sigaction action = {};
    action.sa_sigaction = obey;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
}

}  // namespace
