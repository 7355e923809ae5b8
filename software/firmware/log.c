/* SPDX-License-Identifier: BSD-2-Clause */
/* Event log: a ring of lines {ms, event, a, b} that hosts read over the bus. */
#include "firmware.h"

static const char *const names[] = EVENT_NAMES;

void log_init(void)
{
	CONTROL(STATUS_LOG_COUNT) = 0;
	CONTROL(STATUS_LOG_OFFSET) = LOG_OFFSET;
	CONTROL(STATUS_LOG_LINES) = LOG_LINES;
}

void log_event(uint32_t event, uint32_t a, uint32_t b)
{
	uint32_t count = CONTROL(STATUS_LOG_COUNT);
	uint32_t line = LOG_OFFSET + 16*(count % LOG_LINES);

	CONTROL(line) = clock_ms();
	CONTROL(line + 4) = event;
	CONTROL(line + 8) = a;
	CONTROL(line + 12) = b;
	/* The count follows its line: a reader never sees a line half written behind it. */
	CONTROL(STATUS_LOG_COUNT) = count + 1;
}

const char *log_name(uint32_t event)
{
	return event < EVENT_COUNT ? names[event] : "?";
}
