// SPDX-License-Identifier: BSD-2-Clause
// Stream source and sink: whole frames or records outside, beats with random gaps and stalls inside.
#pragma once
#include <algorithm>
#include "core.h"

struct StreamPorts {
    const Port *valid, *ready, *first, *last, *data, *last_be, *error;
    std::vector<const Port*> params;
    size_t param_bytes = 0;
    size_t lanes() const { return data ? data->width / 8 : 0; }
};

struct Times { uint64_t offered, first, last, beats; };

struct Source : Agent {
    struct Item { Bytes data, params; uint64_t error; uint64_t idle; };
    StreamPorts io;
    Rng         rng;
    uint32_t    gap = 0;            // probability of an idle cycle before a beat, of 65536
    uint32_t    frame_gap = 0;      // and before a frame
    bool        poison = true;      // random payload while not valid and in lanes behind the end
    uint64_t    pace_num = 0, pace_den = 1, pace_overhead = 24;   // wire rate in bytes per cycle, 0: no limit
    int64_t     credit = 0;
    uint64_t    idle = 0;
    std::deque<Item>  queue;
    std::deque<Times> sent;
    Times    now_{};
    size_t   offset = 0;
    bool     offering = false;
    uint64_t beats = 0, frames = 0, stalled = 0;
    bool     fresh = true;

    Source(Bench* b, std::string n, StreamPorts p, uint64_t seed) : Agent(b, std::move(n)), io(std::move(p)), rng(seed) {}

    bool wants() {
        if (queue.empty()) return false;
        if (idle) { idle--; return false; }
        if (offset == 0 && fresh) { fresh = false; if (queue.front().idle) { idle = queue.front().idle - 1; return false; } }
        if (pace_num && offset == 0 && credit < 0) return false;
        return !rng.chance(offset == 0 && frame_gap ? frame_gap : gap);
    }
    void drive(uint64_t now) override {
        if (pace_num) credit = std::min(credit + int64_t(pace_num), int64_t(pace_num));
        if (!offering && wants()) {
            offering = true;
            const Item& f = queue.front();
            const size_t lanes = io.lanes();
            bool end = true;
            if (offset == 0) {
                now_ = {stamp ? *stamp : now, 0, 0, 0};
                if (pace_num) credit -= int64_t((f.data.size() + pace_overhead) * pace_den);
            }
            if (lanes) {
                const size_t n = std::min(lanes, f.data.size() - offset);
                end = offset + n == f.data.size();
                if (n < lanes) { if (poison) rng.fill(io.data->p, lanes); else memset(io.data->p, 0, lanes); }
                memcpy(io.data->p, f.data.data() + offset, n);
                if (io.last_be) {
                    memset(io.last_be->p, 0, io.last_be->bytes());
                    if (end) io.last_be->p[(n - 1) / 8] |= uint8_t(1u << ((n - 1) & 7));
                }
            }
            put(io.first, offset == 0);
            put(io.last, end);
            put(io.error, end ? f.error : 0);
            size_t o = 0;
            for (auto* p : io.params) { memcpy(p->p, &f.params[o], p->bytes()); o += p->bytes(); }
        } else if (!offering && poison) {
            rng.fill(io.data); rng.fill(io.first); rng.fill(io.last); rng.fill(io.last_be); rng.fill(io.error);
            for (auto* p : io.params) rng.fill(p);
        }
        put(io.valid, offering);
    }
    void sample(uint64_t now) override {
        if (!offering) return;
        if (!is_or(io.ready, true)) { stalled++; return; }
        if (stamp) now = *stamp;
        offering = false;
        beats++;
        if (offset == 0) now_.first = now;
        now_.beats++;
        const size_t lanes = io.lanes();
        offset += lanes;
        if (!lanes || offset >= queue.front().data.size()) {
            now_.last = now;
            sent.push_back(now_);
            if (sent.size() > (1u << 20)) sent.pop_front();
            queue.pop_front();
            offset = 0; fresh = true; frames++;
        }
    }
    void reset() override {
        if (offset) { queue.pop_front(); offset = 0; fresh = true; }
        offering = false;
        put(io.valid, 0);
    }
};

struct Sink : Agent {
    struct Item { Bytes data, params; uint64_t error; Times t; };
    StreamPorts io;
    Rng         rng;
    uint32_t    stall = 0;
    bool        check_params = true, check_first = true, check_last_be = true;
    std::deque<Item> queue;
    Item        cur{};
    bool        open = false;
    Stable      stable;
    uint64_t    beats = 0, frames = 0, idle = 0, stalled = 0;
    bool        keep = true;        // store frames; else count only

    Sink(Bench* b, std::string n, StreamPorts p, uint64_t seed) : Agent(b, std::move(n)), io(std::move(p)), rng(seed) {
        for (auto* x : {io.first, io.last, io.data, io.last_be, io.error}) if (x) stable.ports.push_back(x);
        for (auto* x : io.params) stable.ports.push_back(x);
    }
    void drive(uint64_t) override { put(io.ready, !rng.chance(stall)); }
    // Index of the only bit set, -1 when none, -2 when several.
    static int one_hot(const Port* x) {
        int at = -1;
        for (int i = 0; i < x->bytes(); i++) {
            const uint8_t b = x->p[i];
            if (!b) continue;
            if (at >= 0 || (b & (b - 1))) return -2;
            at = i * 8 + __builtin_ctz(b);
        }
        return at;
    }
    void sample(uint64_t now) override {
        const bool valid = is(io.valid), ready = is_or(io.ready, true);
        if (io.ready) stable.check(this, "stream", valid, ready);
        if (!valid) { idle++; return; }
        if (!ready) { stalled++; return; }
        if (stamp) now = *stamp;
        beats++;
        const size_t lanes = io.lanes();
        const bool   last  = !lanes || is_or(io.last, true);
        if (lanes && io.first && check_first && is(io.first) == open)
            fault("first is %d on beat %llu of a frame", int(is(io.first)), (unsigned long long)cur.t.beats);
        size_t n = lanes;
        if (io.last_be) {
            const int at = one_hot(io.last_be);
            if (last) {
                if (at < 0) fault("last_be is %s on last", at == -1 ? "0" : "not one-hot");
                else n = at + 1;
            } else if (at != -1 && check_last_be) fault("last_be is not 0 before last");
        }
        Bytes params(io.param_bytes);
        size_t o = 0;
        for (auto* p : io.params) { memcpy(&params[o], p->p, p->bytes()); o += p->bytes(); }
        if (!open) { cur = Item(); cur.params = params; cur.t.first = cur.t.offered = now; cur.error = 0; }
        else if (check_params && params != cur.params) {
            o = 0;
            for (auto* p : io.params) {
                if (memcmp(&params[o], &cur.params[o], p->bytes())) fault("%s changed inside a frame", p->name);
                o += p->bytes();
            }
        }
        if (io.error) cur.error |= io.error->get();
        if (lanes) cur.data.insert(cur.data.end(), io.data->p, io.data->p + n);
        cur.t.last = now;
        cur.t.beats++;
        open = !last;
        if (last) { frames++; if (keep) queue.push_back(std::move(cur)); }
    }
    void reset() override { open = false; stable.waiting = false; }
};
