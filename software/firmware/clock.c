/* SPDX-License-Identifier: BSD-2-Clause */
/* Milliseconds from the SoC's cycle counter, without 64-bit divisions. */
#include "firmware.h"

static uint32_t ms, last;

static uint32_t cycles(void)
{
	timer0_uptime_latch_write(1);
	return (uint32_t)timer0_uptime_cycles_read();
}

void clock_poll(void)
{
	/* Right as long as the main loop passes once in 2^32 cycles, 17 s at 250 MHz. */
	uint32_t passed = (cycles() - last)/ROCE_MS_CYCLES;

	ms += passed;
	last += passed*ROCE_MS_CYCLES;
	CONTROL(STATUS_UPTIME_MS) = ms;
}

uint32_t clock_ms(void)
{
	return ms;
}
