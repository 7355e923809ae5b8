/* SPDX-License-Identifier: BSD-2-Clause */
/* Console commands. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "firmware.h"

#define LINE 80
#define WORDS 6

static char line[LINE];
static unsigned used;

/* Long answers come a line a pass, when the console has room: nothing is lost and nothing waits. */
static void (*job)(uint32_t n);
static uint32_t job_next, job_end;

static void print_lines(void (*print_line)(uint32_t n), uint32_t first, uint32_t end)
{
	job = print_line;
	job_next = first;
	job_end = end;
}

/* A whole number from 0 to `limit`: decimal, or hexadecimal with 0x. Anything else is told and acts on nothing. */
static bool number(const char *word, const char *what, uint32_t limit, uint32_t *value)
{
	char *end;
	int base = word[0] == '0' && (word[1] == 'x' || word[1] == 'X') ? 16 : 10;
	const char *digits = base == 16 ? word + 2 : word;
	bool good = isxdigit((unsigned char)*digits) && strlen(digits) <= (base == 16 ? 8 : 10);
	unsigned long long n = good ? strtoull(digits, &end, base) : 0;

	if(!good || *end || n > limit) {
		print("%s must be a number from 0 to %lu, not %s\n", what, (unsigned long)limit, word);
		return false;
	}
	*value = n;
	return true;
}

/* The number of lines wanted, the command's only argument. */
static bool lines_wanted(char *const *words, unsigned count, uint32_t limit, uint32_t *wanted)
{
	*wanted = 10;
	return count < 2 || number(words[1], "count", limit, wanted);
}

/* Four numbers from 0 to 255 with dots between them, nothing else. */
static bool address(const char *word, uint32_t *ip)
{
	uint32_t value = 0;
	const char *p = word;

	for(unsigned i = 0; i < 4; i++) {
		unsigned n = 0, digits = 0;

		for(; *p >= '0' && *p <= '9' && digits < 3; p++, digits++)
			n = 10*n + (*p - '0');
		if(!digits || n > 255 || *p != (i < 3 ? '.' : 0)) {
			print("address must be A.B.C.D, each from 0 to 255, not %s\n", word);
			return false;
		}
		value = value << 8 | n;
		p++;
	}
	*ip = value;
	return true;
}

static void print_ip(uint32_t ip)
{
	print("%u.%u.%u.%u", (unsigned)(ip >> 24), (unsigned)(ip >> 16) & 255, (unsigned)(ip >> 8) & 255, (unsigned)ip & 255);
}

/* link --------------------------------------------------------------------------------------------- */

static void link_command(char **words, unsigned count)
{
	if(count > 1) {
		if(!strcmp(words[1], "up"))
			link_request(true);
		else if(!strcmp(words[1], "down"))
			link_request(false);
		else if(!strcmp(words[1], "restart"))
			link_restart();
		else
			print("link [up|down|restart], not %s\n", words[1]);
	}
	print("state %s reason %s attempts %lu failures %lu ups %lu backoff %lu ms\n",
		link_state_name(link_info.state), link_reason_name(link_info.reason), (unsigned long)link_info.attempts,
		(unsigned long)link_info.failures, (unsigned long)link_info.ups, (unsigned long)link_info.backoff_ms);
	print("status %08lx control %08lx latched %08lx\n", (unsigned long)phy_status_read(),
		(unsigned long)phy_control_read(), (unsigned long)phy_latched_read());
}

/* qp, mr ------------------------------------------------------------------------------------------- */

static void print_qp(uint32_t i)
{
	struct qp *qp = qp_get(i);

	print("qp %lu %s qpn %06lx dest %06lx pmtu %lu ", (unsigned long)i, qp_state_names[qp->state], (unsigned long)qp_field(qp->row, "qpn"),
		(unsigned long)qp_field(qp->row, "dest_qpn"), (unsigned long)(128u << qp_field(qp->row, "pmtu")));
	print_ip(qp_field(qp->row, "dst_ip"));
	print(" sq_psn %06lx rq_psn %06lx\n", (unsigned long)qp_field(qp->row, "sq_psn"), (unsigned long)qp_field(qp->row, "rq_psn"));
}

static void print_used_qp(uint32_t i)
{
	if(qp_get(i)->state != ROCE_QP_RESET)
		print_qp(i);
}

static void qp_command(char **words, unsigned count)
{
	if(count == 1) {
		print_lines(print_used_qp, 0, FIRMWARE_QPS);
		return;
	}
	uint32_t index;

	if(!number(words[1], "QP index", FIRMWARE_QPS - 1, &index)) {
		return;
	} else if(count == 2) {
		print_qp(index);
	} else {
		uint32_t row[QP_WORDS];
		uint32_t state = !strcmp(words[2], "reset") ? ROCE_QP_RESET : ROCE_QP_ERR;

		if(state == ROCE_QP_ERR && strcmp(words[2], "err")) {
			print("qp N [reset|err], not %s\n", words[2]);
			return;
		}
		memcpy(row, qp_get(index)->row, sizeof row);
		row[0] = index;
		row[ROCE_ARG_QP_STATE_WORD] = (row[ROCE_ARG_QP_STATE_WORD] & ~7u) | state;
		if(!request_modify(0, row))
			print("busy\n");
	}
}

static void print_mr(uint32_t i)
{
	uint32_t *w = regions[i].words;

	if(regions[i].valid)
		print("mr %lu key %08lx va %08lx%08lx length %lu access %02lx pd %lu\n", (unsigned long)i, (unsigned long)(w[0] << 8 | w[0] >> 24),
			(unsigned long)w[4], (unsigned long)w[3], (unsigned long)w[5], (unsigned long)w[1] & 0xffff,
			(unsigned long)w[1] >> 16);
}

static void mr_command(char **words, unsigned count)
{
	(void)words;
	(void)count;
	print_lines(print_mr, 0, FIRMWARE_MRS);
}

/* stats, log, refusals ----------------------------------------------------------------------------- */

#ifdef CSR_ROCE_MONITOR_FIRMWARE_COUNTER_SELECT_ADDR
/* What was selected takes some clocks to cross where the engine has a clock of its own; where that is in reset it never does. */
static bool monitor_shows(void)
{
	for(unsigned turn = 0; turn < 100; turn++)
		if(roce_monitor_firmware_status_read() & 1)
			return true;
	print("the engine does not answer\n");
	job_next = job_end;
	return false;
}

static void print_counter(uint32_t i)
{
	static const char *const rows[] = ERROR_NAMES;

	roce_monitor_firmware_counter_select_write(i);
	if(!monitor_shows())
		return;
	uint32_t value = roce_monitor_firmware_counter_value_read();

	if(value)
		print("engine   %s %lu\n", rows[i], (unsigned long)value);
}
#endif

static void stats_command(char **words, unsigned count)
{
	(void)words;
	(void)count;
	print("phy      rx %lu tx %lu rx_errors %lu rx_dropped %lu tx_dropped %lu\n", (unsigned long)phy_rx_frames_count_read(),
		(unsigned long)phy_tx_frames_count_read(), (unsigned long)phy_rx_errors_count_read(),
		(unsigned long)(phy_rx_dropped_down_count_read() + phy_rx_dropped_full_count_read()),
		(unsigned long)(phy_tx_dropped_down_count_read() + phy_tx_refused_count_read()));
	print("slowpath rx %lu tx %lu dropped mac %lu long %lu full %lu error %lu\n", (unsigned long)slowpath_rx_frames_read(),
		(unsigned long)slowpath_tx_frames_read(), (unsigned long)slowpath_rx_dropped_mac_read(),
		(unsigned long)slowpath_rx_dropped_long_read(), (unsigned long)slowpath_rx_dropped_full_read(),
		(unsigned long)slowpath_rx_dropped_error_read());
	print("firmware uptime %lu ms requests %lu refused %lu console_lost %lu\n", (unsigned long)clock_ms(),
		(unsigned long)CONTROL(STATUS_REQUESTS), (unsigned long)CONTROL(STATUS_REFUSALS), (unsigned long)CONTROL(STATUS_CONSOLE_LOST));
#ifdef CSR_ROCE_MONITOR_FIRMWARE_COUNTER_SELECT_ADDR
	print_lines(print_counter, 0, ERROR_COUNT);
#endif
}

static void print_event(uint32_t i)
{
	uint32_t at = LOG_OFFSET + 16*(i % LOG_LINES);

	print("%6lu ms %s %08lx %08lx\n", (unsigned long)CONTROL(at), log_name(CONTROL(at + 4)),
		(unsigned long)CONTROL(at + 8), (unsigned long)CONTROL(at + 12));
}

/* The last `wanted` of `total` numbers, of which `kept` are still there. */
static void print_last(void (*print_line)(uint32_t n), uint32_t total, uint32_t wanted, uint32_t kept)
{
	if(wanted > kept)
		wanted = kept;
	print_lines(print_line, total > wanted ? total - wanted : 0, total);
}

static void log_command(char **words, unsigned count)
{
	uint32_t wanted;

	if(lines_wanted(words, count, LOG_LINES, &wanted))
		print_last(print_event, CONTROL(STATUS_LOG_COUNT), wanted, LOG_LINES);
}

#ifdef CSR_ROCE_MONITOR_LINES_ADDR
static void print_refusal(uint32_t i)
{
	static const char *const rows[] = ERROR_NAMES;

	roce_monitor_firmware_line_select_write(i % 64);
	if(!monitor_shows())
		return;
	uint32_t row = roce_monitor_firmware_line_row_read();

	print("%s qpn %06lx psn %06lx opcode %02lx info %08lx\n", (row & 0xff) < ERROR_COUNT ? rows[row & 0xff] : "?",
		(unsigned long)roce_monitor_firmware_line_qpn_read(), (unsigned long)roce_monitor_firmware_line_psn_read(),
		(unsigned long)(row >> 8) & 0xff, (unsigned long)roce_monitor_firmware_line_info_read());
}
#endif

static void refusals_command(char **words, unsigned count)
{
#ifdef CSR_ROCE_MONITOR_LINES_ADDR
	uint32_t lines = roce_monitor_lines_read(), wanted;

	if(!lines_wanted(words, count, 64, &wanted))
		return;
	print("%lu refusals, %lu not logged\n", (unsigned long)lines, (unsigned long)roce_monitor_lines_lost_read());
	print_last(print_refusal, lines, wanted, 64);
#else
	(void)words;
	(void)count;
	print("this SoC has no engine\n");
#endif
}

/* neighbours, faults ------------------------------------------------------------------------------- */

static void arp_command(char **words, unsigned count)
{
	if(count > 1) {
		uint32_t ip;

		if(!address(words[1], &ip))
			return;
		network_resolve(ip);
	}
	for(unsigned i = 0; i < neighbour_count; i++) {
		const uint8_t *m = neighbours[i].mac;

		print_ip(neighbours[i].ip);
		print(" %02x:%02x:%02x:%02x:%02x:%02x %lu ms ago\n", m[0], m[1], m[2], m[3], m[4], m[5],
			(unsigned long)(clock_ms() - neighbours[i].seen_ms));
	}
}

static void fault_command(char **words, unsigned count)
{
#ifdef CSR_PHY_FAULT_LINK_ADDR
	if(count > 2) {
		uint32_t value;

		if(!number(words[2], "fault", 0xffffffff, &value))
			return;
		if(!strcmp(words[1], "link"))
			phy_fault_link_write(value);
		else if(!strcmp(words[1], "failures"))
			phy_fault_failures_write(value);
		else if(!strcmp(words[1], "lose"))
			phy_fault_lose_cycles_write(value);
		else if(!strcmp(words[1], "event"))
			phy_fault_event_write(value);
		else
			print("fault [link|failures|lose|event] N, not %s\n", words[1]);
	}
	print("link %lx failures %lu\n", (unsigned long)phy_fault_link_read(), (unsigned long)phy_fault_failures_read());
#else
	(void)words;
	(void)count;
	print("this PHY is real: no faults to order\n");
#endif
}

/* Lines -------------------------------------------------------------------------------------------- */

static void version_command(char **words, unsigned count)
{
	(void)words;
	(void)count;
	print("roce_soc firmware %u, ABI %u, %s engine\n", FIRMWARE_VERSION, ROCE_ABI_VERSION, WITH_ENGINE ? "with" : "without");
}

static void help_command(char **words, unsigned count);

static const struct {
	const char *name, *help;
	void (*run)(char **words, unsigned count);
	unsigned words;         /* at most, the name counted */
} commands[] = {
	{ "help",     "this list",                                          help_command,     1 },
	{ "version",  "firmware and ABI",                                   version_command,  1 },
	{ "link",     "link [up|down|restart]",                             link_command,     2 },
	{ "qp",       "qp [N [reset|err]]: queue pairs of the firmware",    qp_command,       3 },
	{ "mr",       "memory regions registered through the firmware",     mr_command,       1 },
	{ "stats",    "counters",                                           stats_command,    1 },
	{ "log",      "log [N]: last events",                               log_command,      2 },
	{ "refusals", "refusals [N]: last packets and requests refused",    refusals_command, 2 },
	{ "arp",      "arp [A.B.C.D]: neighbours; asks for an address",     arp_command,      2 },
	{ "fault",    "fault [link|failures|lose|event N]: simulation only", fault_command,   3 },
};

static void print_help(uint32_t i)
{
	print("%-9s %s\n", commands[i].name, commands[i].help);
}

static void help_command(char **words, unsigned count)
{
	(void)words;
	(void)count;
	print_lines(print_help, 0, sizeof commands/sizeof commands[0]);
}

static void run(void)
{
	char *words[WORDS];
	unsigned count = 0;

	for(char *p = strtok(line, " "); p; p = strtok(NULL, " ")) {
		if(count == WORDS) {
			print("at most %u words a line\n", WORDS);
			return;
		}
		words[count++] = p;
	}
	if(!count)
		return;
	for(unsigned i = 0; i < sizeof commands/sizeof commands[0]; i++) {
		if(!strcmp(words[0], commands[i].name)) {
			if(count > commands[i].words)
				print("%s\n", commands[i].help);
			else
				commands[i].run(words, count);
			return;
		}
	}
	print("unknown command %s; help lists them\n", words[0]);
}

void shell_init(void)
{
	print("\nroce_soc firmware %u\nroce> ", FIRMWARE_VERSION);
}

void shell_poll(void)
{
	int c;

	if(job) {
		if(job_next >= job_end) {
			job = NULL;
			print("roce> ");
		} else if(console_room() >= 200) {
			job(job_next++);
		}
		return;
	}
	c = console_get();
	if(c < 0)
		return;
	if(c == '\r' || c == '\n') {
		print("\n");
		line[used] = 0;
		used = 0;
		run();
		if(!job)
			print("roce> ");
	} else if(c == 0x7f || c == '\b') {
		if(used) {
			used--;
			print("\b \b");
		}
	} else if(c >= ' ' && used < LINE - 1) {
		line[used++] = c;
		print("%c", c);
	}
}
