/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests of hosts and of the console: one at a time, each answered in control RAM. */
#include <stdio.h>
#include <string.h>

#include "firmware.h"

struct region regions[FIRMWARE_MRS];

static enum { IDLE, START, ENGINE, SYNC, FIND } state;
static bool from_console;
static uint32_t opcode, mask, command;
static uint32_t args[REQUEST_WORDS], row[QP_WORDS];
static uint32_t unknown = FIRMWARE_QPS;    /* QPs from here on are to be asked of the engine */
static const char *const attr_names[32] = ATTR_NAMES;

void request_init(void)
{
	CONTROL(REQUEST_SUBMIT) = 0;
	CONTROL(REQUEST_DONE) = 0;
}

static void names_of(uint32_t attrs, char *text, unsigned size)
{
	unsigned used = 0;

	text[0] = 0;
	for(unsigned i = 0; i < 32 && used + 24 < size; i++)
		if((attrs >> i) & 1)
			used += snprintf(text + used, size - used, " %s", attr_names[i]);
}

void refusal_text(const struct refusal *r, char *text, unsigned size)
{
	char names[160];

	switch(r->code) {
	case FW_BAD_REQUEST:
		snprintf(text, size, "request %lu is not one of 0..%lu", (unsigned long)r->value, (unsigned long)r->limit);
		break;
	case FW_BAD_INDEX:
		snprintf(text, size, "QP index must be below %lu, not %lu", (unsigned long)r->limit, (unsigned long)r->value);
		break;
	case FW_BAD_TRANSITION:
		snprintf(text, size, "no transition %s -> %s", qp_state_names[(r->value >> 8) % 7], qp_state_names[(r->value & 0xff) % 7]);
		break;
	case FW_MISSING:
	case FW_REFUSED:
		names_of(r->value, names, sizeof names);
		snprintf(text, size, "attributes %s:%s", r->code == FW_MISSING ? "missing" : "not allowed", names);
		break;
	case FW_BAD_VALUE:
		snprintf(text, size, "%s %lu breaks its limit %lu", qp_field_name(r->field), (unsigned long)r->value, (unsigned long)r->limit);
		break;
	case FW_ENGINE:
		snprintf(text, size, "engine refused: code %lu, argument word %lu", (unsigned long)(r->value & 0xff), (unsigned long)(r->value >> 8));
		break;
	case FW_TIMEOUT:
		snprintf(text, size, "engine silent for %lu ms", (unsigned long)r->limit);
		break;
	case FW_NO_ENGINE:
		snprintf(text, size, "this SoC has no engine");
		break;
	default:
		snprintf(text, size, "good");
		break;
	}
}

static void finish(const struct refusal *refusal)
{
	state = IDLE;
	CONTROL(STATUS_REQUESTS)++;
	if(refusal->code) {
		CONTROL(STATUS_REFUSALS)++;
		log_event(EVENT_REFUSED, opcode << 8 | refusal->code, refusal->value);
	} else {
		log_event(EVENT_REQUEST, opcode, args[0]);
	}
	if(from_console) {
		char text[200];

		refusal_text(refusal, text, sizeof text);
		print("%s\n", text);
		return;
	}
	CONTROL(REQUEST_CODE) = refusal->code;
	CONTROL(REQUEST_FIELD) = refusal->field;
	CONTROL(REQUEST_VALUE) = refusal->value;
	CONTROL(REQUEST_LIMIT) = refusal->limit;
	CONTROL(REQUEST_DONE) = CONTROL(REQUEST_SUBMIT);
}

static void answer(uint32_t code, uint32_t value, uint32_t limit)
{
	struct refusal refusal = { code, 0, value, limit };

	finish(&refusal);
}

static void tell_row(const struct qp *qp)
{
	for(unsigned i = 0; i < QP_WORDS; i++)
		CONTROL(REQUEST_ARGS + 4 + 4*i) = qp->row[i];
	answer(FW_OK, 0, 0);
}

static void begin(void)
{
	switch(opcode) {
	case REQ_NOP:
		answer(FW_OK, 0, 0);
		break;
	case REQ_LINK:
		if(args[0] == 2)
			link_restart();
		else
			link_request(args[0] != 0);
		answer(FW_OK, 0, 0);
		break;
	case REQ_QP_MODIFY:
		if(!WITH_ENGINE) {
			answer(FW_NO_ENGINE, 0, 0);
			break;
		}
		/* The engine may have moved the QP to ERR: ask for its state first. */
		command = ROCE_CMD_MODIFY_QP;
		mask = args[0];
		state = SYNC;
		break;
	case REQ_QP_QUERY:
		if(!qp_get(args[0])) {
			answer(FW_BAD_INDEX, args[0], FIRMWARE_QPS);
			break;
		}
		if(!WITH_ENGINE) {
			tell_row(qp_get(args[0]));
			break;
		}
		command = ROCE_CMD_QUERY_QP;
		args[1] = args[0];
		state = SYNC;
		break;
	case REQ_COMMAND:
		command = args[0];
		if(!WITH_ENGINE)
			answer(FW_NO_ENGINE, 0, 0);
		else if(command == ROCE_CMD_MODIFY_QP || command > ROCE_CMD_WRITE_EQ)
			answer(FW_BAD_REQUEST, command, ROCE_CMD_WRITE_EQ);
		else
			state = START;
		break;
	default:
		answer(FW_BAD_REQUEST, opcode, REQ_COMMAND);
		break;
	}
}

/* What a finished command means for the firmware's own tables. */
static void applied(void)
{
	if(opcode == REQ_QP_MODIFY) {
		qp_commit(row[0] & 0xfff, row);
	} else if(command == ROCE_CMD_WRITE_MR || command == ROCE_CMD_INVALIDATE_MR) {
		uint32_t index = args[1] & 0xffffff;    /* the key's variant stands above it */

		if(index < FIRMWARE_MRS) {
			regions[index].valid = command == ROCE_CMD_WRITE_MR;
			memcpy(regions[index].words, args + 1, sizeof regions[index].words);
		}
	} else if(command == ROCE_CMD_QUERY_DEVICE || command == ROCE_CMD_QUERY_QP) {
		for(unsigned i = 0; i < ROCE_COMMAND_WORDS; i++)
			CONTROL(REQUEST_ARGS + 4 + 4*i) = command_value(i);
	}
}

/* The engine's row is the truth: it fails QPs by itself, and it outlives a reset of this CPU. */
static void adopt(uint32_t index)
{
	struct qp *qp = qp_get(index);

	if(qp && (command_code() & 0xff) == ROCE_CODE_OK) {
		uint32_t real = (command_value(ROCE_ARG_QP_STATE_WORD) >> ROCE_ARG_QP_STATE_SHIFT) & 7;

		if(real != qp->state) {
			for(unsigned i = 0; i < QP_WORDS; i++)
				row[i] = command_value(i);
			row[0] = index;
			qp_commit(index, row);
		}
	}
	command_release();
}

/* Now the query is answered or the change judged. */
static void synced(void)
{
	struct refusal refusal;

	adopt(args[1] & 0xfff);
	if(opcode == REQ_QP_QUERY)
		tell_row(qp_get(args[0]));
	else if(!qp_check(mask, args + 1, &refusal, row))
		finish(&refusal);
	else
		state = START;
}

/* Only the CPU was reset: whenever there is nothing else to do one more QP is asked of the engine, and none disturbed. */
void request_find_qps(void)
{
	unknown = 0;
}

static void find(void)
{
	if(command_poll() == COMMAND_DONE) {
		adopt(unknown++);
		state = IDLE;
	} else if(command_poll() == COMMAND_TIMEOUT) {
		command_release();
		unknown = FIRMWARE_QPS;
		state = IDLE;
	}
}

void request_poll(void)
{
	switch(state) {
	case IDLE: {
		uint32_t submit = CONTROL(REQUEST_SUBMIT);

		if(submit == CONTROL(REQUEST_DONE)) {
			if(WITH_ENGINE && unknown < FIRMWARE_QPS && command_start(ROCE_CMD_QUERY_QP, &unknown, 1))
				state = FIND;
			break;
		}
		from_console = false;
		opcode = CONTROL(REQUEST_OPCODE);
		for(unsigned i = 0; i < REQUEST_WORDS; i++)
			args[i] = CONTROL(REQUEST_ARGS + 4*i);
		begin();
		break;
	}
	case SYNC:
		if(command_poll() == COMMAND_IDLE) {
			if(!qp_get(args[1] & 0xfff))
				synced();
			else
				command_start(ROCE_CMD_QUERY_QP, args + 1, 1);
		} else if(command_poll() == COMMAND_DONE) {
			synced();
		} else if(command_poll() == COMMAND_TIMEOUT) {
			command_release();
			answer(FW_TIMEOUT, command, COMMAND_MS);
		}
		break;
	case FIND:
		find();
		break;
	case START:
		if(opcode == REQ_QP_MODIFY ? command_start(command, row, QP_WORDS)
				: command_start(command, args + 1, ROCE_COMMAND_WORDS))
			state = ENGINE;
		break;
	case ENGINE:
		if(command_poll() == COMMAND_DONE) {
			uint32_t code = command_code();

			if(code & 0xff) {
				command_release();
				CONTROL(REQUEST_ENGINE) = code;
				answer(FW_ENGINE, code, 0);
			} else {
				applied();
				command_release();
				answer(FW_OK, 0, 0);
			}
		} else if(command_poll() == COMMAND_TIMEOUT) {
			command_release();
			answer(FW_TIMEOUT, command, COMMAND_MS);
		}
		break;
	}
}

bool request_modify(uint32_t attrs, const uint32_t *words)
{
	if(state != IDLE)
		return false;
	from_console = true;
	opcode = REQ_QP_MODIFY;
	args[0] = attrs;
	memcpy(args + 1, words, QP_WORDS*sizeof(uint32_t));
	begin();
	return true;
}
