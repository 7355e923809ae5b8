/* SPDX-License-Identifier: BSD-2-Clause */
/* What the parts of the firmware offer each other. Every *_poll returns at once: the main loop never blocks. */
#ifndef FIRMWARE_H
#define FIRMWARE_H

#include <stdbool.h>
#include <stdint.h>

#include <generated/csr.h>
#include <generated/mem.h>
#include <generated/soc.h>

#include "generated/roce.h"

/* The engine may be left out of a SoC; link and slow path work without it. */
#ifdef CSR_ROCE_MAILBOX_FIRMWARE_GO_ADDR
#define WITH_ENGINE 1
#else
#define WITH_ENGINE 0
#endif

/* Control RAM: uncached words shared with hosts and debuggers. */
#define CONTROL(offset) (*(volatile uint32_t *)(CONTROL_RAM_BASE + (offset)))

#define QP_WORDS ROCE_QP_WORDS

/* clock.c: milliseconds since boot, of ROCE_MS_CYCLES clocks each. */
void clock_poll(void);
uint32_t clock_ms(void);

/* log.c: event ring in control RAM. */
void log_init(void);
void log_event(uint32_t event, uint32_t a, uint32_t b);
const char *log_name(uint32_t event);

/* link.c: bring-up of the port. */
struct link {
	uint32_t state, reason;
	uint32_t attempts, failures, ups;
	uint32_t backoff_ms;
};
extern struct link link_info;
void link_init(void);
void link_poll(void);
void link_request(bool up);
void link_restart(void);
const char *link_state_name(uint32_t state);
const char *link_reason_name(uint32_t reason);

/* command.c: the engine's mailbox, one command at a time. */
enum { COMMAND_IDLE, COMMAND_BUSY, COMMAND_DONE, COMMAND_TIMEOUT };
bool command_start(uint32_t opcode, const uint32_t *words, unsigned count);
int command_poll(void);
uint32_t command_code(void);     /* code | info << 8 of the last one */
uint32_t command_value(unsigned word);
void command_release(void);

/* qp.c: state machine and shadows of the firmware's queue pairs. */
struct refusal {
	uint32_t code, field, value, limit;
};
struct qp {
	uint32_t state;
	uint32_t row[QP_WORDS];
};
extern const char *const qp_state_names[7];
struct qp *qp_get(uint32_t index);
bool qp_check(uint32_t mask, const uint32_t *args, struct refusal *refusal, uint32_t *row);
void qp_commit(uint32_t index, const uint32_t *row);
const char *qp_field_name(uint32_t field);
uint32_t qp_field(const uint32_t *row, const char *name);

/* request.c: request block in control RAM. */
struct region {
	bool valid;
	uint32_t words[ROCE_MR_WORDS];
};
extern struct region regions[FIRMWARE_MRS];
void request_init(void);
void request_find_qps(void);
void request_poll(void);
bool request_modify(uint32_t mask, const uint32_t *args);   /* the console's own; false: busy */
void refusal_text(const struct refusal *refusal, char *text, unsigned size);

/* events.c: what the engine raised. */
void events_poll(void);

/* network.c: ARP over the slow path's slots. */
struct neighbour {
	uint32_t ip;
	uint8_t mac[6];
	uint32_t seen_ms;
};
#define NEIGHBOURS 16
extern struct neighbour neighbours[NEIGHBOURS];
extern unsigned neighbour_count;
void network_poll(void);
void network_announce(void);
void network_resolve(uint32_t ip);

/* console.c: characters. shell.c: lines. */
void console_init(void);
void console_poll(void);
int console_get(void);           /* -1: none */
unsigned console_room(void);     /* characters that print takes without loss */
void print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shell_init(void);
void shell_poll(void);

#endif
