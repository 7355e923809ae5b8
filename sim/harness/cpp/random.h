// SPDX-License-Identifier: BSD-2-Clause
// Power-up values. Verilator 5.48 hashes name and seed, so all words of a RAM get the same value; here each differs.
#pragma once
#include "Vtop.h"
#include "core.h"
extern Rng model_random;
static inline WDataOutP model_random_wide(int width, WDataOutP out) {
    const int words = VL_WORDS_I(width);
    for (int i = 0; i < words; i++) out[i] = EData(model_random.next() >> 32);
    out[words - 1] &= VL_MASK_E(width);
    return out;
}
#define VL_SCOPED_RAND_RESET_I(width, scope, salt) (IData(model_random.next() >> 32) & VL_MASK_I(width))
#define VL_SCOPED_RAND_RESET_Q(width, scope, salt) (QData(model_random.next()) & VL_MASK_Q(width))
#define VL_SCOPED_RAND_RESET_W(width, out, scope, salt) model_random_wide(width, out)
