/* SPDX-License-Identifier: BSD-2-Clause */
/* Console characters: a ring that the main loop empties as the UART takes them, so that no print waits. */
#include <stdarg.h>
#include <stdio.h>

#include "firmware.h"

#define RING 2048

static char ring[RING];
static unsigned head, tail;

static void put(char c)
{
	if((head + 1) % RING == tail) {
		CONTROL(STATUS_CONSOLE_LOST)++;
		return;
	}
	ring[head] = c;
	head = (head + 1) % RING;
}

void console_init(void)
{
	CONTROL(STATUS_CONSOLE_LOST) = 0;
	uart_ev_enable_write(0);
}

void console_poll(void)
{
	/* At most a FIFO full in one pass. */
	for(unsigned i = 0; i < 16 && tail != head && !uart_txfull_read(); i++) {
		uart_rxtx_write(ring[tail]);
		tail = (tail + 1) % RING;
	}
}

unsigned console_room(void)
{
	return (tail + RING - head - 1) % RING;
}

int console_get(void)
{
	if(uart_rxempty_read())
		return -1;
	int c = uart_rxtx_read() & 0xff;

	uart_ev_pending_write(2);
	return c;
}

void print(const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	for(const char *p = text; *p; p++) {
		if(*p == '\n')
			put('\r');
		put(*p);
	}
}
