/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pair state machine (RC): which attributes a change of state must and may carry, and the limits
 * of each. A row is written whole by the engine's command, so the firmware keeps every row's shadow.
 */
#include <string.h>

#include "firmware.h"

struct field {
	const char *name;
	uint8_t word, shift, width, attr;
	uint32_t low, high;
};

struct transition {
	uint8_t old, new;
	uint32_t required, optional;
};

static const struct field fields[] = { QP_FIELD_ROWS };
static const struct transition transitions[] = { QP_TRANSITION_ROWS };
static struct qp qps[FIRMWARE_QPS];

#define FIELDS (sizeof fields/sizeof fields[0])
#define NO_ATTR 32

const char *const qp_state_names[7] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

struct qp *qp_get(uint32_t index)
{
	return index < FIRMWARE_QPS ? &qps[index] : NULL;
}

const char *qp_field_name(uint32_t field)
{
	return field < FIELDS ? fields[field].name : "?";
}

static uint32_t mask_of(const struct field *f)
{
	return f->width >= 32 ? 0xffffffff : (1u << f->width) - 1;
}

static uint32_t value_of(const struct field *f, const uint32_t *words)
{
	return (words[f->word] >> f->shift) & mask_of(f);
}

uint32_t qp_field(const uint32_t *row, const char *name)
{
	for(unsigned i = 0; i < FIELDS; i++)
		if(!strcmp(fields[i].name, name))
			return value_of(&fields[i], row);
	return 0;
}

static bool refuse(struct refusal *refusal, uint32_t code, uint32_t field, uint32_t value, uint32_t limit)
{
	*refusal = (struct refusal){ code, field, value, limit };
	return false;
}

static void copy(const struct field *f, uint32_t *row, const uint32_t *args)
{
	unsigned width = f->width;

	/* Wide fields begin at a word's bit 0. */
	for(unsigned word = f->word; width >= 32; word++, width -= 32)
		row[word] = args[word];
	if(width) {
		unsigned word = f->word + (f->width - width)/32;
		uint32_t mask = ((1u << width) - 1) << f->shift;

		row[word] = (row[word] & ~mask) | (args[word] & mask);
	}
}

/* Judges a change; good: `row` is the whole new row. */
bool qp_check(uint32_t mask, const uint32_t *args, struct refusal *refusal, uint32_t *row)
{
	uint32_t index = args[ROCE_ARG_QP_QPI_WORD] & 0xfff;
	uint32_t new = (args[ROCE_ARG_QP_STATE_WORD] >> ROCE_ARG_QP_STATE_SHIFT) & 7;
	struct qp *qp = qp_get(index);
	const struct transition *t = NULL;

	*refusal = (struct refusal){ FW_OK, 0, 0, 0 };
	if(!qp)
		return refuse(refusal, FW_BAD_INDEX, 0, index, FIRMWARE_QPS);
	mask &= ~ATTR_STATE;
	for(unsigned i = 0; i < sizeof transitions/sizeof transitions[0]; i++)
		if(transitions[i].old == qp->state && transitions[i].new == new)
			t = &transitions[i];
	if(!t)
		return refuse(refusal, FW_BAD_TRANSITION, 0, qp->state << 8 | new, 0);
	if(t->required & ~mask)
		return refuse(refusal, FW_MISSING, 0, t->required & ~mask, t->required);
	if(mask & ~t->required & ~t->optional)
		return refuse(refusal, FW_REFUSED, 0, mask & ~t->required & ~t->optional, t->required | t->optional);

	memcpy(row, qp->row, sizeof qp->row);
	row[0] = index;
	for(unsigned i = 0; i < FIELDS; i++) {
		const struct field *f = &fields[i];
		bool taken = f->attr == NO_ATTR ? qp->state == ROCE_QP_RESET && new == ROCE_QP_INIT : (mask >> f->attr) & 1;

		if(!taken)
			continue;
		uint32_t value = value_of(f, args);

		if(value < f->low && f->width <= 32)
			return refuse(refusal, FW_BAD_VALUE, i, value, f->low);
		if(value > f->high && f->width <= 32)
			return refuse(refusal, FW_BAD_VALUE, i, value, f->high);
		copy(f, row, args);
	}
	row[ROCE_ARG_QP_STATE_WORD] = (row[ROCE_ARG_QP_STATE_WORD] & ~7u) | new;
	if(new != ROCE_QP_SQD)
		row[ROCE_ARG_QP_SQD_NOTIFY_WORD] &= ~(1u << ROCE_ARG_QP_SQD_NOTIFY_SHIFT);
	if(new == ROCE_QP_RESET)
		row[ROCE_ARG_QP_STATE_WORD] = (row[ROCE_ARG_QP_STATE_WORD] & ~7u) | ROCE_QP_RESET;
	return true;
}

/* The engine has taken the row. */
void qp_commit(uint32_t index, const uint32_t *row)
{
	struct qp *qp = qp_get(index);
	uint32_t old = qp->state;

	memcpy(qp->row, row, sizeof qp->row);
	qp->state = (row[ROCE_ARG_QP_STATE_WORD] >> ROCE_ARG_QP_STATE_SHIFT) & 7;
	log_event(EVENT_QP_STATE, index, old << 8 | qp->state);
}
