// SPDX-License-Identifier: BSD-2-Clause
// Model behind the engine's memory ports: it keeps its side of the contract and checks the engine's.
#pragma once
#include <algorithm>
#include <set>
#include "core.h"

// A range that stores nothing: reads give a pattern of the place in it, writes are compared with it.
struct Pattern {
    int      target;
    uint64_t lo, hi;
    uint64_t written = 0, wrong = 0, jumps = 0, next;   // jumps: writes that do not begin where the last one ended
    static uint8_t byte(uint64_t x) { return uint8_t((x >> 3) * 0x9E3779B97F4A7C15ull >> (8 * (x & 7))); }
    Pattern(int t, uint64_t l, uint64_t h) : target(t), lo(l), hi(h), next(l) {}
    void copy(uint64_t addr, uint8_t* p, uint64_t n, bool write) {
        if (!write) { for (uint64_t i = 0; i < n; i++) p[i] = byte(addr - lo + i); return; }
        jumps += addr != next;
        next = addr + n;
        written += n;
        for (uint64_t i = 0; i < n; i++) wrong += p[i] != byte(addr - lo + i);
    }
};

// Sparse bytes by {target, address}. Pages never touched hold random bytes, so stale reads show.
struct Store {
    using Page = Bytes;
    std::unordered_map<uint64_t, Page> pages;
    std::deque<Pattern> patterns;
    uint64_t seed;
    int      fill = -1;             // -1: random, else this byte
    explicit Store(uint64_t s) : seed(s) {}
    Pattern* pattern(int target, uint64_t addr, uint64_t n) {
        for (auto& p : patterns) if (p.target == target && addr < p.hi && addr + n > p.lo) return &p;
        return nullptr;
    }
    uint8_t* at(int target, uint64_t addr) {
        const uint64_t key = uint64_t(target) << 52 | addr >> 12;
        Page& page = pages[key];
        if (page.empty()) {
            page.resize(4096);
            if (fill >= 0) memset(page.data(), fill, 4096);
            else Rng(seed ^ key * 0xD1342543DE82EF95ull).fill(page.data(), 4096);
        }
        return page.data() + (addr & 4095);
    }
    void copy(int target, uint64_t addr, uint8_t* p, uint64_t n, bool write) {
        while (n) {
            uint64_t k = std::min<uint64_t>(n, 4096 - (addr & 4095));
            if (Pattern* q = patterns.empty() ? nullptr : pattern(target, addr, k)) {
                k = std::min(k, addr < q->lo ? q->lo - addr : q->hi - addr);
                if (addr >= q->lo) { q->copy(addr, p, k, write); addr += k; p += k; n -= k; continue; }
            }
            if (write) memcpy(at(target, addr), p, k); else memcpy(p, at(target, addr), k);
            addr += k; p += k; n -= k;
        }
    }
};

// kinds: 1 reads, 2 writes. err: their answer; 0: a range that only has latencies of its own.
struct Range { int target; uint64_t lo, hi; int err; int kinds; uint64_t lat_lo = 0, lat_hi = 0; };

struct MemConfig {
    uint32_t cmd_stall = 0, data_stall = 0, answer_gap = 0;   // probabilities of 65536
    uint64_t lat_lo = 4, lat_hi = 4;                          // cycles from command (read) or last beat (write)
    uint32_t depth = 64;                                      // commands held
    uint32_t ahead = 0;                                       // write beats taken before their command
    uint32_t reorder = 0;                                     // answers of different targets may overtake
    uint32_t early = 0;                                       // chance of 65536 that a read sees memory at issue
    uint32_t err_chance = 0;
    int      err_code = 1;
    uint64_t timeout = 2000;                                  // cycles until err 3 is answered
    uint64_t data_wait = 64;                                  // bound on cycles without the data owed by a command
    bool     exact_be = true;
};

struct MemCounters { uint64_t commands, beats, bytes, errors, peak, bubbles, stalled, answers; };
struct MemLog { uint64_t issued, answered, kind, target, addr, length, qpi, tag, err; };

struct Command { const Port *valid, *ready, *target, *addr, *length, *qpi, *tag; };

struct MemPort : Agent {
    struct Op {
        int target; uint64_t addr, length, qpi, tag, issued, due; int err; uint64_t beats, done;
        bool complete, captured; Bytes data, be;
        uint64_t span() const { return beats * lanes; }
        uint64_t lanes;
    };
    Store*         store;
    Command        cmd;
    const Port*    data;
    MemConfig      cfg;
    MemCounters    count{};
    Rng            rng;
    Stable         stable_cmd;
    std::deque<Op> ops;
    std::set<uint64_t>  tags;
    std::vector<Range>* ranges;
    std::deque<MemLog>* log;
    bool           paused = false;   // a dead target: accepts, never answers
    bool           cmd_ready = false;

    MemPort(Bench* b, std::string n, Store* s, Command c, const Port* d, std::vector<Range>* r, std::deque<MemLog>* l,
            uint64_t seed)
        : Agent(b, std::move(n)), store(s), cmd(c), data(d), rng(seed), ranges(r), log(l) {
        for (auto* x : {c.target, c.addr, c.length, c.qpi, c.tag}) if (x) stable_cmd.ports.push_back(x);
    }
    virtual int kind() const = 0;
    size_t lanes() const { return data->width / 8; }

    void drive_cmd() {
        cmd_ready = ops.size() < cfg.depth && !rng.chance(cfg.cmd_stall);
        put(cmd.ready, cmd_ready);
    }
    bool touches(const Range& r, const Op& op) {
        return (r.kinds & kind()) && (r.target < 0 || r.target == op.target) && op.addr < r.hi && op.addr + op.length > r.lo;
    }
    int error_of(const Op& op) {
        for (auto& r : *ranges) if (r.err && touches(r, op)) return r.err;
        return rng.chance(cfg.err_chance) ? cfg.err_code : 0;
    }
    // Takes a command and checks what the contract says about it.
    void take(uint64_t now) {
        const bool valid = is(cmd.valid), ready = is_or(cmd.ready, cmd_ready);
        stable_cmd.check(this, kind() == 1 ? "rcmd" : "wcmd", valid, ready);
        if (valid && !ready) count.stalled++;
        if (!valid || !ready) return;
        Op op{};
        op.target = cmd.target ? int(cmd.target->get()) : 0;
        op.addr   = cmd.addr->get();
        op.length = cmd.length->get();
        op.qpi    = cmd.qpi ? cmd.qpi->get() : 0;
        op.tag    = cmd.tag ? cmd.tag->get() : 0;
        op.lanes  = lanes();
        op.issued = now;
        if (op.length < 1 || op.length > 4096) {
            fault("length is %llu, must be 1..4096", (unsigned long long)op.length);
            op.length = op.length ? 4096 : 1;
        }
        if ((op.addr & 4095) + op.length > 4096)
            fault("range %#llx + %llu leaves its 4 KiB page", (unsigned long long)op.addr, (unsigned long long)op.length);
        if (cmd.tag && !tags.insert(op.tag).second) fault("tag %llu is still outstanding", (unsigned long long)op.tag);
        op.beats = (op.addr % lanes() + op.length + lanes() - 1) / lanes();
        op.err   = error_of(op);
        op.data.resize(op.span());
        count.commands++;
        count.bytes += op.length;
        ops.push_back(std::move(op));
        count.peak = std::max<uint64_t>(count.peak, ops.size());
        accepted(ops.back(), now);
    }
    virtual void accepted(Op&, uint64_t) {}
    void schedule(Op& op, uint64_t now) {
        op.due = now + (op.err == 3 ? cfg.timeout : rng.range(cfg.lat_lo, cfg.lat_hi));
        for (auto& r : *ranges) if (!r.err && touches(r, op)) op.due = now + rng.range(r.lat_lo, r.lat_hi);
        op.complete = true;
    }
    // The operation to answer now, or -1: the oldest, or the oldest of a target when targets may overtake.
    int next(uint64_t now) {
        if (ops.empty() || paused) return -1;
        const bool head = ops[0].complete && ops[0].due <= now;
        if (!cfg.reorder || !rng.chance(cfg.reorder)) return head ? 0 : -1;
        uint64_t seen = 0;
        std::vector<int> able;
        for (size_t i = 0; i < ops.size(); i++) {
            const uint64_t bit = uint64_t(1) << (ops[i].target & 63);
            if (seen & bit) continue;
            seen |= bit;
            if (ops[i].complete && ops[i].due <= now) able.push_back(int(i));
        }
        return able.empty() ? -1 : able[rng.range(0, able.size() - 1)];
    }
    void retire(size_t i, uint64_t now) {
        Op& op = ops[i];
        count.answers++;
        if (op.err) count.errors++;
        log->push_back({op.issued, now, uint64_t(kind()), uint64_t(op.target), op.addr, op.length, op.qpi, op.tag,
                        uint64_t(op.err)});
        if (log->size() > (1u << 20)) log->pop_front();
        tags.erase(op.tag);
        ops.erase(ops.begin() + i);
    }
    void reset() override { ops.clear(); tags.clear(); stable_cmd.waiting = false; put(cmd.ready, 0); }
};

struct WritePort : MemPort {
    const Port *dvalid, *dready, *be, *dlast, *avalid, *aready, *atag, *aerr;
    struct Beat { Bytes data, be; bool last; };
    std::deque<Beat> early;
    Stable   stable_data;
    uint64_t waited = 0;
    int      answering = -1;
    bool     data_ready = false;

    template <class... A> explicit WritePort(A... a) : MemPort(a...) {}
    void bind() { for (auto* x : {data, be, dlast}) if (x) stable_data.ports.push_back(x); }
    int kind() const override { return 2; }
    Op* filling() { for (auto& op : ops) if (!op.complete) return &op; return nullptr; }

    void drive(uint64_t now) override {
        drive_cmd();
        data_ready = (filling() || early.size() < cfg.ahead) && !rng.chance(cfg.data_stall);
        put(dready, data_ready);
        if (answering < 0 && !rng.chance(cfg.answer_gap)) {
            answering = next(now);
            if (answering >= 0) {
                Op& op = ops[answering];
                if (!op.err) commit(op);
                put(atag, op.tag);
                put(aerr, op.err);
            }
        }
        if (answering < 0) { rng.fill(atag); rng.fill(aerr); }
        put(avalid, answering >= 0);
    }
    // The bytes become visible here, when the acknowledge is first shown, and not before.
    void commit(Op& op) {
        if (op.be.empty()) {            // every enable was as the range says
            store->copy(op.target, op.addr, op.data.data() + op.addr % lanes(), op.length, true);
            return;
        }
        const uint64_t base = op.addr - op.addr % lanes();
        for (uint64_t i = 0; i < op.span(); i++) if (op.be[i]) *store->at(op.target, base + i) = op.data[i];
    }
    void sample(uint64_t now) override {
        if (answering >= 0) {
            if (is_or(aready, true)) { retire(answering, now); answering = -1; }
            else fault("wack is not accepted");
        }
        take(now);
        const bool valid = is(dvalid), ready = is_or(dready, data_ready);
        stable_data.check(this, "wdata", valid, ready);
        if (valid && ready)
            early.push_back({Bytes(data->p, data->p + lanes()), Bytes(be->p, be->p + be->bytes()), is(dlast)});
        bool fed = false;
        while (!early.empty()) {
            Op* op = filling();
            if (!op) break;
            store_beat(*op, early.front(), now);
            early.pop_front();
            fed = true;
        }
        // A command promises its data.
        if (filling() && !fed && ready) {
            if (filling()->done) count.bubbles++;
            if (++waited > cfg.data_wait) { fault("no data for %llu cycles after wcmd", (unsigned long long)waited); waited = 0; }
        } else waited = 0;
    }
    void store_beat(Op& op, const Beat& b, uint64_t now) {
        const uint64_t first = op.addr % lanes(), end = first + op.length, at = op.done * lanes();
        memcpy(&op.data[at], b.data.data(), lanes());
        for (size_t k = 0; k < b.be.size(); k++) {
            uint8_t want = 0;
            for (size_t i = 0; i < 8; i++) want |= uint8_t(at + k * 8 + i >= first && at + k * 8 + i < end) << i;
            if (b.be[k] == want) continue;
            const size_t lane = k * 8 + __builtin_ctz(b.be[k] ^ want);
            const bool   have = b.be[k] >> (lane & 7) & 1;
            if (have || cfg.exact_be)
                fault("byte enable of lane %zu is %d in beat %llu of %#llx + %llu", lane, have, (unsigned long long)op.done,
                      (unsigned long long)op.addr, (unsigned long long)op.length);
            if (op.be.empty()) {
                op.be.resize(op.span());
                for (uint64_t i = first; i < end; i++) op.be[i] = 1;
            }
            for (size_t i = 0; i < 8; i++) op.be[at + k * 8 + i] = b.be[k] & want & 1u << i;
        }
        op.done++;
        count.beats++;
        const bool end_beat = op.done == op.beats;
        if (b.last != end_beat)
            fault("wdata last is %d on beat %llu of %llu", b.last, (unsigned long long)op.done, (unsigned long long)op.beats);
        if (end_beat) schedule(op, now);
    }
    void reset() override {
        MemPort::reset();
        early.clear(); stable_data.waiting = false; answering = -1; waited = 0;
        put(dready, 0); put(avalid, 0);
    }
};

struct ReadPort : MemPort {
    const Port *dvalid, *dready, *dlast, *dtag, *derr;
    int  answering = -1;
    bool shown = false;

    template <class... A> explicit ReadPort(A... a) : MemPort(a...) {}
    int kind() const override { return 1; }

    void capture(Op& op) {
        const uint64_t shift = op.addr % lanes();
        rng.fill(op.data.data(), op.data.size());      // lanes outside the range carry no promise
        if (op.err) std::fill(op.data.begin(), op.data.end(), 0);
        else store->copy(op.target, op.addr, op.data.data() + shift, op.length, false);
        op.captured = true;
    }
    void accepted(Op& op, uint64_t now) override {
        schedule(op, now);
        if (rng.chance(cfg.early)) capture(op);
    }
    void drive(uint64_t now) override {
        drive_cmd();
        if (answering < 0) { answering = next(now); if (answering >= 0 && !ops[answering].captured) capture(ops[answering]); }
        if (!shown && answering >= 0 && !rng.chance(cfg.answer_gap)) {
            Op& op = ops[answering];
            memcpy(data->p, &op.data[op.done * lanes()], lanes());
            put(dlast, op.done + 1 == op.beats);
            put(dtag, op.tag);
            put(derr, op.err);
            shown = true;
        }
        if (!shown) { rng.fill(data); rng.fill(dlast); rng.fill(dtag); rng.fill(derr); }
        put(dvalid, shown);
    }
    void sample(uint64_t now) override {
        if (shown) {
            if (!is_or(dready, true)) fault("rdata is not accepted");
            else {
                shown = false;
                count.beats++;
                if (++ops[answering].done == ops[answering].beats) { retire(answering, now); answering = -1; }
            }
        }
        take(now);
    }
    void reset() override { MemPort::reset(); answering = -1; shown = false; put(dvalid, 0); }
};
