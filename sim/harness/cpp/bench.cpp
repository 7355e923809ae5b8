// SPDX-License-Identifier: BSD-2-Clause
// Scheduler and the C interface that Python calls.
#include "bench.h"
#include "verilated.h"

void Agent::fault(const char* format, ...) {
    if (bench->faults.size() >= 100) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bench->faults.push_back(name + ": " + text + " (time " + std::to_string(bench->time) + " ps, cycle "
                            + std::to_string(bench->clocks[0].cycles) + ")");
}

Bench::~Bench() {
    if (trace) model_trace_close(trace);
    if (model) model_delete(model);
}
void Bench::eval() { context->time(time); model_eval(model); if (trace) model_trace_dump(trace, time); dirty = false; }

// Goes to the next clock edge. Inputs change with the falling edge, so every time point costs one eval.
void Bench::tick() {
    if (dirty) eval();
    uint64_t t = clocks[0].next;
    for (auto& c : clocks) if (c.next < t) t = c.next;
    for (auto& c : clocks) if (c.next == t && !c.level) {
        if (in_reset || c.held) for (auto* a : c.agents) a->reset();
        else                    for (auto* a : c.agents) a->sample(c.cycles);
    }
    for (auto& c : clocks) if (c.next == t) {
        c.level = !c.level;
        *c.clk->p = c.level;
        if (c.level) { c.cycles++; c.next = t + c.high; continue; }
        c.next = t + c.low;
        if (!in_reset && !c.held) for (auto* a : c.agents) a->drive(c.cycles);
    }
    time = t;
    eval();
}
bool Bench::cycle() {
    const size_t before = faults.size();
    do tick(); while (!clocks[0].level);
    do tick(); while (clocks[0].level);
    return !(stop_on_fault && faults.size() > before);
}

static Bench* bench(void* b) { return static_cast<Bench*>(b); }
static Source* source(void* b, int i) { return static_cast<Source*>(bench(b)->agents[i].get()); }
static Sink*   sink(void* b, int i) { return static_cast<Sink*>(bench(b)->agents[i].get()); }
static MemPort* mport(void* b, int i) { return static_cast<MemPort*>(bench(b)->agents[i].get()); }
static uint64_t agent_seed(Bench* b) { return b->seed * 1000003 + b->agents.size() * 7919 + 17; }
static int enlist(Bench* b, Agent* a, int clock) {
    b->agents.emplace_back(a);
    b->clocks[clock].agents.push_back(a);
    a->reset();
    b->dirty = true;
    return int(b->agents.size()) - 1;
}

#define API extern "C" __attribute__((visibility("default")))

API void* hs_new(uint64_t seed) {
    auto* b = new Bench;
    b->seed = seed;
    b->context.reset(new VerilatedContext);
    b->context->randReset(2);
    b->context->randSeed(int(seed % 2147483647 + 1));
    b->context->fatalOnError(false);
    b->model = model_new(b->context.get());
    const int n = model_ports(b->model, nullptr, 0);
    b->ports.resize(n);
    model_ports(b->model, b->ports.data(), n);
    for (auto& p : b->ports) { b->by_name[p.name] = &p; if (p.input) p.set(0); }
    return b;
}
API void hs_delete(void* b) { delete bench(b); }

API int hs_clock(void* v, const char* clk, const char* rst, uint64_t period, uint64_t phase) {
    auto* b = bench(v);
    Clock c;
    c.clk = b->find(clk);
    if (!c.clk || !c.clk->input) return -1;
    c.rst  = b->find(rst);
    c.high = period / 2;
    c.low  = period - c.high;
    c.next = b->time + c.low + phase;
    b->clocks.push_back(c);
    return int(b->clocks.size()) - 1;
}
API uint64_t hs_cycles(void* b, int clock) { return bench(b)->clocks[clock].cycles; }
API uint64_t hs_time(void* b) { return bench(b)->time; }

API int hs_step(void* b, uint64_t n) { while (n--) if (!bench(b)->cycle()) return -1; return 0; }
// Goes to the n-th next falling edge of any clock.
API int hs_step_clock(void* v, int clock, uint64_t n) {
    auto* b = bench(v);
    const size_t before = b->faults.size();
    while (n--) {
        const uint64_t now = b->clocks[clock].cycles;
        while (b->clocks[clock].cycles == now || b->clocks[clock].level) b->tick();
        if (b->stop_on_fault && b->faults.size() > before) return -1;
    }
    return 0;
}
// Reset of one clock's side, with its agents; the other sides go on.
API void hs_hold(void* v, int clock, int on) {
    auto* b = bench(v);
    auto& c = b->clocks[clock];
    c.held = on;
    if (c.rst && c.rst->input) c.rst->set(on);
    for (auto* a : c.agents) { if (on) a->reset(); else a->drive(c.cycles); }
    b->dirty = true;
}
API int hs_reset(void* v, uint64_t n) {
    auto* b = bench(v);
    b->in_reset = true;
    for (auto& c : b->clocks) if (c.rst && c.rst->input) c.rst->set(1);
    for (auto& a : b->agents) a->reset();
    b->dirty = true;
    // Every clock sees n edges: count the slowest.
    std::vector<uint64_t> want;
    for (auto& c : b->clocks) want.push_back(c.cycles + n);
    for (bool more = true; more;) {
        b->cycle();
        more = false;
        for (size_t i = 0; i < want.size(); i++) more |= b->clocks[i].cycles < want[i];
    }
    for (auto& c : b->clocks) if (c.rst && c.rst->input) c.rst->set(0);
    b->in_reset = false;
    for (auto& c : b->clocks) for (auto* a : c.agents) a->drive(c.cycles);
    b->dirty = true;
    return 0;
}

API int hs_port(void* b, int i, const char** name, int* input) {
    if (i >= int(bench(b)->ports.size())) return -1;
    auto& p = bench(b)->ports[i];
    *name = p.name; *input = p.input;
    return p.width;
}
API int hs_poke(void* v, const char* name, const uint8_t* value, size_t n) {
    auto* b = bench(v);
    auto* p = b->find(name);
    if (!p || !p->input || n != size_t(p->bytes())) return -1;
    memcpy(p->p, value, n);
    b->dirty = true;
    return 0;
}
API int hs_peek(void* v, const char* name, uint8_t* value, size_t n) {
    auto* b = bench(v);
    auto* p = b->find(name);
    if (!p || n < size_t(p->bytes())) return -1;
    if (b->dirty) b->eval();
    memcpy(value, p->p, p->bytes());
    return p->bytes();
}
// Memories and registers inside; returns bytes, 0 behind the last.
API size_t hs_state(void* v, int i, const char** name, int* width, int* depth) {
    uint8_t* base;
    auto& s = model_states(bench(v)->model, &base)[i];
    *name = s.name; *width = s.width; *depth = s.depth;
    return s.name ? s.bytes() : 0;
}
API void hs_state_read(void* v, int i, uint8_t* value) {
    auto* b = bench(v);
    if (b->dirty) b->eval();
    uint8_t* base;
    auto& s = model_states(b->model, &base)[i];
    memcpy(value, base + s.offset, s.bytes());
}
API void hs_state_write(void* v, int i, int row, const uint8_t* value) {
    uint8_t* base;
    auto& s = model_states(bench(v)->model, &base)[i];
    size_t n = s.bytes() / s.depth;
    memcpy(base + s.offset + n * row, value, n);
}
API int hs_wait(void* v, const char* name, uint64_t value, uint64_t max) {     // 0 reached, 1 not, -1 fault
    auto* b = bench(v);
    auto* p = b->find(name);
    if (b->dirty) b->eval();
    while (p->get() != value) { if (!max--) return 1; if (!b->cycle()) return -1; }
    return 0;
}
API int hs_fault_count(void* b) { return int(bench(b)->faults.size()); }
API const char* hs_fault(void* b, int i) { return bench(b)->faults[i].c_str(); }
API void hs_clear_faults(void* b) { bench(b)->faults.clear(); }
API void hs_stop_on_fault(void* b, int on) { bench(b)->stop_on_fault = on; }
API int hs_trace(void* v, const char* file) {
    auto* b = bench(v);
    if (b->trace) { model_trace_close(b->trace); b->trace = nullptr; }
    if (file) { b->trace = model_trace_open(b->model, file); return b->trace ? 0 : -1; }
    return 0;
}

// Streams. roles: valid ready first last data last_be error, an empty name where absent.
static StreamPorts stream_ports(Bench* b, const char* const* roles, const char* const* params, int n) {
    StreamPorts s{};
    const Port** slots[] = {&s.valid, &s.ready, &s.first, &s.last, &s.data, &s.last_be, &s.error};
    for (int i = 0; i < 7; i++) *slots[i] = b->find(roles[i]);
    for (int i = 0; i < n; i++) { s.params.push_back(b->find(params[i])); s.param_bytes += s.params.back()->bytes(); }
    return s;
}
API int hs_source(void* v, const char* name, int clock, const char* const* roles, const char* const* params, int n) {
    auto* b = bench(v);
    return enlist(b, new Source(b, name, stream_ports(b, roles, params, n), agent_seed(b)), clock);
}
API int hs_sink(void* v, const char* name, int clock, const char* const* roles, const char* const* params, int n) {
    auto* b = bench(v);
    return enlist(b, new Sink(b, name, stream_ports(b, roles, params, n), agent_seed(b)), clock);
}
// Times of a stream's frames in cycles of the main clock.
API void hs_stamp_main(void* v, int i) { auto* b = bench(v); b->agents[i]->stamp = &b->clocks[0].cycles; }
API void hs_source_set(void* b, int i, uint32_t gap, uint32_t frame_gap, int poison) {
    auto* s = source(b, i); s->gap = gap; s->frame_gap = frame_gap; s->poison = poison;
}
API void hs_source_pace(void* b, int i, uint64_t num, uint64_t den, uint64_t overhead) {
    auto* s = source(b, i); s->pace_num = num; s->pace_den = den; s->pace_overhead = overhead; s->credit = 0;
}
API void hs_sink_set(void* b, int i, uint32_t stall, int params, int first, int last_be, int keep) {
    auto* s = sink(b, i);
    s->stall = stall; s->check_params = params; s->check_first = first; s->check_last_be = last_be; s->keep = keep;
}
API void hs_push(void* b, int i, const uint8_t* data, size_t n, const uint8_t* params, size_t np, uint64_t error, uint64_t idle) {
    source(b, i)->queue.push_back({Bytes(data, data + n), Bytes(params, params + np), error, idle});
}
API size_t hs_source_pending(void* b, int i) { return source(b, i)->queue.size(); }
API void hs_source_stats(void* b, int i, uint64_t* s) {
    auto* x = source(b, i);
    s[0] = x->frames; s[1] = x->beats; s[2] = x->stalled;
}
API size_t hs_source_times(void* b, int i, uint64_t* out, size_t max) {
    auto& q = source(b, i)->sent;
    size_t n = 0;
    for (; n < max && !q.empty(); n++, q.pop_front()) memcpy(out + 4 * n, &q.front(), 32);
    return n;
}
API size_t hs_sink_count(void* b, int i) { return sink(b, i)->queue.size(); }
API void hs_sink_stats(void* b, int i, uint64_t* s) {
    auto* x = sink(b, i); s[0] = x->frames; s[1] = x->beats; s[2] = x->stalled; s[3] = x->idle; s[4] = x->open;
}
// Length of the oldest frame, -1 when there is none; taken only if it fits.
API int64_t hs_pop(void* b, int i, uint8_t* data, size_t max, uint8_t* params, uint64_t* info) {
    auto& q = sink(b, i)->queue;
    if (q.empty()) return -1;
    auto& f = q.front();
    const int64_t n = int64_t(f.data.size());
    if (size_t(n) > max) return n;
    memcpy(data, f.data.data(), n);
    memcpy(params, f.params.data(), f.params.size());
    info[0] = f.error; info[1] = f.t.first; info[2] = f.t.last; info[3] = f.t.beats;
    q.pop_front();
    return n;
}
API int hs_until(void* v, int i, size_t n, uint64_t max) {                     // 0 there, 1 not, -1 fault
    auto* b = bench(v);
    auto* s = sink(v, i);
    while (s->queue.size() < n) { if (!max--) return 1; if (!b->cycle()) return -1; }
    return 0;
}
API int hs_drain(void* v, const int* sources, int n, uint64_t max) {
    auto* b = bench(v);
    for (;;) {
        bool busy = false;
        for (int i = 0; i < n; i++) busy |= !source(v, sources[i])->queue.empty();
        if (!busy) return 0;
        if (!max--) return 1;
        if (!b->cycle()) return -1;
    }
}

// Memories.
API int hs_memory(void* v, int fill) {
    auto* b = bench(v);
    b->memories.emplace_back(new Bench::Memory(b->seed * 31 + b->memories.size()));
    b->memories.back()->store.fill = fill;
    return int(b->memories.size()) - 1;
}
static Command command(Bench* b, const std::string& p) {
    return {b->find(p + "_valid"), b->find(p + "_ready"), b->find(p + "_target"), b->find(p + "_addr"),
            b->find(p + "_length"), b->find(p + "_qpi"), b->find(p + "_tag")};
}
API int hs_write_port(void* v, int memory, const char* prefix, int clock) {
    auto* b = bench(v);
    auto* m = b->memories[memory].get();
    const std::string p = prefix;
    auto f = [&](const char* n) { return b->find(p + n); };
    auto* w = new WritePort(b, p, &m->store, command(b, p + "_wcmd"), f("_wdata_data"), &m->ranges, &m->log,
                            agent_seed(b));
    w->dvalid = f("_wdata_valid"); w->dready = f("_wdata_ready"); w->be = f("_wdata_be"); w->dlast = f("_wdata_last");
    w->avalid = f("_wack_valid"); w->aready = f("_wack_ready"); w->atag = f("_wack_tag"); w->aerr = f("_wack_err");
    w->bind();
    return enlist(b, w, clock);
}
API int hs_read_port(void* v, int memory, const char* prefix, int clock) {
    auto* b = bench(v);
    auto* m = b->memories[memory].get();
    const std::string p = prefix;
    auto f = [&](const char* n) { return b->find(p + n); };
    auto* r = new ReadPort(b, p, &m->store, command(b, p + "_rcmd"), f("_rdata_data"), &m->ranges, &m->log,
                           agent_seed(b));
    r->dvalid = f("_rdata_valid"); r->dready = f("_rdata_ready"); r->dlast = f("_rdata_last");
    r->dtag = f("_rdata_tag"); r->derr = f("_rdata_err");
    return enlist(b, r, clock);
}
API void hs_mem_config(void* b, int i, const uint64_t* c) {
    auto& m = mport(b, i)->cfg;
    m.cmd_stall = c[0]; m.data_stall = c[1]; m.answer_gap = c[2]; m.lat_lo = c[3]; m.lat_hi = c[4];
    m.depth = c[5]; m.ahead = c[6]; m.reorder = c[7]; m.early = c[8]; m.err_chance = c[9]; m.err_code = int(c[10]);
    m.timeout = c[11]; m.data_wait = c[12];
    m.exact_be = c[13] != 0;
    mport(b, i)->paused = c[14] != 0;
}
API void hs_mem_counters(void* b, int i, uint64_t* out) {
    auto* m = mport(b, i);
    memcpy(out, &m->count, sizeof m->count);
    out[8] = m->ops.size();
}
API void hs_mem_forget(void* v, int i) {
    auto* b = bench(v);
    auto* m = mport(b, i);
    m->reset();
    for (auto& c : b->clocks) for (auto* a : c.agents) if (a == m) a->drive(c.cycles);
    b->dirty = true;
}
API void hs_mem_copy(void* b, int memory, int target, uint64_t addr, uint8_t* p, uint64_t n, int write) {
    bench(b)->memories[memory]->store.copy(target, addr, p, n, write);
}
API void hs_mem_error(void* b, int memory, int target, uint64_t lo, uint64_t hi, int err, int kinds) {
    auto& r = bench(b)->memories[memory]->ranges;
    if (!kinds) r.clear(); else r.push_back({target, lo, hi, err, kinds});
}
API void hs_mem_slow(void* b, int memory, int target, uint64_t lo, uint64_t hi, uint64_t lat_lo, uint64_t lat_hi, int kinds) {
    bench(b)->memories[memory]->ranges.push_back({target, lo, hi, 0, kinds, lat_lo, lat_hi});
}
API int hs_mem_pattern(void* b, int memory, int target, uint64_t lo, uint64_t hi) {
    auto& q = bench(b)->memories[memory]->store.patterns;
    q.emplace_back(target, lo, hi);
    return int(q.size()) - 1;
}
API void hs_mem_pattern_counts(void* b, int memory, int i, uint64_t* out) {
    auto& p = bench(b)->memories[memory]->store.patterns[i];
    out[0] = p.written; out[1] = p.wrong; out[2] = p.jumps;
}
API size_t hs_mem_log(void* b, int memory, uint64_t* out, size_t max) {
    auto& q = bench(b)->memories[memory]->log;
    size_t n = 0;
    for (; n < max && !q.empty(); n++, q.pop_front()) memcpy(out + 9 * n, &q.front(), sizeof(MemLog));
    return n;
}
