/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine's command mailbox of this CPU. Time-outs are answered, never waited for. */
#include "firmware.h"

static int state = COMMAND_IDLE;
static uint32_t sequence, opcode, result, started;

#if WITH_ENGINE

bool command_start(uint32_t op, const uint32_t *words, unsigned count)
{
	if(state != COMMAND_IDLE || (roce_mailbox_firmware_status_read() & 1))
		return false;
	roce_mailbox_firmware_index_write(0);
	for(unsigned i = 0; i < count; i++)
		roce_mailbox_firmware_data_write(words[i]);
	sequence = (sequence + 1) & 0xff;
	opcode = op;
	started = clock_ms();
	roce_mailbox_firmware_go_write(op | sequence << 8);
	state = COMMAND_BUSY;
	return true;
}

int command_poll(void)
{
	if(state == COMMAND_BUSY) {
		uint32_t status = roce_mailbox_firmware_status_read();

		if((status & 2) && ((status >> 16) & 0xff) == sequence) {
			result = ((status >> 8) & 0xff) | (status >> 24) << 8;
			state = COMMAND_DONE;
			if(result & 0xff)
				log_event(EVENT_ENGINE_ERR, opcode, result);
		} else if(clock_ms() - started >= COMMAND_MS) {
			state = COMMAND_TIMEOUT;
			log_event(EVENT_ENGINE_ERR, opcode, ROCE_CODE_TIMEOUT);
		}
	}
	return state;
}

uint32_t command_value(unsigned word)
{
	roce_mailbox_firmware_index_write(word);
	return roce_mailbox_firmware_value_read();
}

#else

bool command_start(uint32_t op, const uint32_t *words, unsigned count)
{
	(void)words;
	(void)count;
	opcode = op;
	started = clock_ms();
	sequence++;
	return false;
}

int command_poll(void)
{
	return state;
}

uint32_t command_value(unsigned word)
{
	return word & 0;
}

#endif

uint32_t command_code(void)
{
	return result;
}

void command_release(void)
{
	state = COMMAND_IDLE;
}
