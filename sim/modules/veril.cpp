// SPDX-License-Identifier: BSD-2-Clause
// The model's side of LiteX's simulation core: evaluation without trace.
#include <cstdint>

#include "Vsim.h"
#include "verilated.h"

extern "C" {

void litex_sim_eval(void* model, uint64_t) { static_cast<Vsim*>(model)->eval(); }
void litex_sim_init_cmdargs(int argc, char* argv[]) { Verilated::commandArgs(argc, argv); }
void litex_sim_init_tracer(void*, long, long) {}
void litex_sim_tracer_dump() {}
int litex_sim_got_finish() { return Verilated::gotFinish(); }
#if VM_COVERAGE
void litex_sim_coverage_dump() {}
#endif

}
