/* SPDX-License-Identifier: BSD-2-Clause */
/* Causes that the engine raised, for the log: one pending bit each, so that none is lost. */
#include "firmware.h"

void events_poll(void)
{
#ifdef CSR_ROCE_EV_PENDING_ADDR
	/* Completions are the business of whoever posted the work. */
	uint32_t pending = roce_ev_pending_read() & ~(1u << CSR_ROCE_EV_PENDING_COMPLETION_OFFSET);

	if(!pending)
		return;
	roce_ev_pending_write(pending);
	for(uint32_t cause = 0; cause < 32; cause++)
		if((pending >> cause) & 1)
			log_event(EVENT_EVENT, cause, clock_ms());
#endif
}
