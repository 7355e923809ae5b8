// SPDX-License-Identifier: BSD-2-Clause
// The test bench around one model: clocks, agents, faults. Compiled once, linked into every model.
#pragma once
#include "memory.h"
#include "stream.h"

struct Bench {
    std::unique_ptr<class VerilatedContext> context;
    void*                    model = nullptr;
    void*                    trace = nullptr;
    uint64_t                 seed = 1, time = 0;
    std::vector<Port>        ports;
    std::unordered_map<std::string, const Port*> by_name;
    std::vector<Clock>       clocks;
    std::vector<std::unique_ptr<Agent>> agents;
    struct Memory { Store store; std::vector<Range> ranges; std::deque<MemLog> log; explicit Memory(uint64_t s) : store(s) {} };
    std::vector<std::unique_ptr<Memory>> memories;
    std::vector<std::string> faults;
    bool                     stop_on_fault = true, dirty = true, in_reset = false;

    const Port* find(const std::string& n) const { auto i = by_name.find(n); return i == by_name.end() ? nullptr : i->second; }
    void eval();
    void tick();
    bool cycle();                   // one period of clock 0; false when a fault asks to stop
    ~Bench();
};

// Each model brings these, generated next to its Verilated classes.
extern "C" {
void* model_new(class VerilatedContext*);
void  model_delete(void*);
void  model_eval(void*);
int   model_ports(void*, Port*, int);
const State* model_states(void*, uint8_t** base);
void* model_trace_open(void*, const char*);
void  model_trace_dump(void*, uint64_t);
void  model_trace_close(void*);
}
