// SPDX-License-Identifier: BSD-2-Clause
// Ports, random numbers, clocks and the base of everything that moves once per clock.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

using Bytes = std::vector<uint8_t>;

// One memory (depth rows) or register (depth 0) inside the model, as an offset into Verilator's class.
struct State {
    const char* name;
    size_t      offset;
    int         width, depth;
    // Verilator keeps a row in 1, 2, 4, 8 bytes or in words of 4.
    size_t bytes() const {
        const size_t row = width <= 8 ? 1 : width <= 16 ? 2 : width <= 32 ? 4 : width <= 64 ? 8 : 4 * ((width + 31) / 32);
        return row * (depth ? depth : 1);
    }
};

// One port of the model. Verilator's storage is little endian, so a port is a row of bytes.
struct Port {
    const char* name;
    uint8_t*    p;
    int         width;
    bool        input;
    int  bytes() const { return (width + 7) / 8; }
    // Storage beyond the width must stay zero: this masks the last byte.
    uint8_t top() const { return (width & 7) ? uint8_t((1u << (width & 7)) - 1) : 0xff; }
    uint64_t get() const { uint64_t v = 0; memcpy(&v, p, width > 64 ? 8 : bytes()); return v; }
    void set(uint64_t v) const {
        if (width < 64) v &= (uint64_t(1) << width) - 1;
        const int n = bytes();
        memcpy(p, &v, n > 8 ? 8 : n);
        if (n > 8) memset(p + 8, 0, n - 8);
    }
};
static inline bool is(const Port* x) { return x && (*x->p & 1); }
static inline bool is_or(const Port* x, bool absent) { return x ? (*x->p & 1) : absent; }
static inline void put(const Port* x, uint64_t v) { if (x) x->set(v); }

// xorshift64*: cheap, and each agent has its own so that adding one does not disturb the others.
struct Rng {
    uint64_t s;
    explicit Rng(uint64_t seed) : s((seed + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull | 1) { next(); next(); }
    uint64_t next() { s ^= s >> 12; s ^= s << 25; s ^= s >> 27; return s * 0x2545F4914F6CDD1Dull; }
    bool     chance(uint32_t per_65536) { return per_65536 && (next() >> 48) < per_65536; }
    uint64_t range(uint64_t lo, uint64_t hi) { return hi <= lo ? lo : lo + (next() >> 11) % (hi - lo + 1); }
    void     fill(uint8_t* p, size_t n) {
        for (; n >= 8; n -= 8, p += 8) { uint64_t v = next(); memcpy(p, &v, 8); }
        if (n) { uint64_t v = next(); memcpy(p, &v, n); }
    }
    void fill(const Port* x) { if (x) { fill(x->p, x->bytes()); x->p[x->bytes() - 1] &= x->top(); } }
};

struct Bench;

struct Agent {
    Bench*      bench;
    std::string name;
    const uint64_t* stamp = nullptr;         // cycles of another clock to note times in
    explicit Agent(Bench* b, std::string n) : bench(b), name(std::move(n)) {}
    virtual ~Agent() {}
    virtual void drive(uint64_t now)  = 0;   // inputs of the model, while the clock is low
    virtual void sample(uint64_t now) = 0;   // outputs of the model, just before the rising edge
    virtual void reset()              = 0;   // each cycle under reset, instead of sample
    void fault(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

struct Clock {
    const Port* clk  = nullptr;
    const Port* rst  = nullptr;
    uint64_t    high = 1, low = 1, next = 0, cycles = 0;
    bool        level = false, held = false;    // held: this clock's side alone is in reset
    std::vector<Agent*> agents;
};

// Valid and payload hold still while valid waits for ready.
struct Stable {
    std::vector<const Port*> ports;
    Bytes held;
    bool  waiting = false;
    void check(Agent* a, const char* what, bool valid, bool ready) {
        if (waiting) {
            if (!valid) a->fault("%s: valid dropped before ready", what);
            size_t o = 0;
            for (auto* p : ports) {
                if (valid && memcmp(&held[o], p->p, p->bytes())) a->fault("%s: %s changed while stalled", what, p->name);
                o += p->bytes();
            }
        }
        waiting = valid && !ready;
        if (waiting) {
            held.clear();
            for (auto* p : ports) held.insert(held.end(), p->p, p->p + p->bytes());
        }
    }
};
