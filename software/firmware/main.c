/* SPDX-License-Identifier: BSD-2-Clause */
/* Firmware of the on-chip CPU: link, queue pairs, neighbours, console. Never on the data path. */
#include <irq.h>

#include "firmware.h"

void isr(void);

/* No interrupt is enabled: getting here is a trap. It is noted, and the firmware starts again. */
void isr(void)
{
	uint32_t cause;

	__asm__ volatile("csrr %0, mcause" : "=r"(cause));
	CONTROL(STATUS_RESET_CAUSE) = 1 + cause;
	__asm__ volatile("j _start");
	__builtin_unreachable();
}

/* RAM holds anything after power-up; only a restart after a trap leaves its cause. */
static void clear_control(void)
{
	uint32_t cause = CONTROL(STATUS_MAGIC) == FIRMWARE_MAGIC ? CONTROL(STATUS_RESET_CAUSE) : 0;

	CONTROL(STATUS_MAGIC) = 0;
	for(uint32_t offset = 4; offset < LOG_OFFSET; offset += 4)
		CONTROL(offset) = 0;
	CONTROL(STATUS_RESET_CAUSE) = cause;
}

int main(void)
{
	irq_setmask(0);
	irq_setie(0);
	clear_control();
	CONTROL(STATUS_VERSION) = FIRMWARE_VERSION;
	clock_poll();
	log_init();
	request_init();
	console_init();
	shell_init();
	log_event(EVENT_BOOT, FIRMWARE_VERSION, WITH_ENGINE);
	link_init();
	CONTROL(STATUS_MAGIC) = FIRMWARE_MAGIC;
	for(;;) {
		clock_poll();
		link_poll();
		request_poll();
		events_poll();
		network_poll();
		shell_poll();
		console_poll();
		CONTROL(STATUS_HEARTBEAT)++;
	}
}
