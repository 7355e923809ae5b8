/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bus master behind a TCP port: litex_server --uart --uart-port socket://localhost:PORT, or control/bus.py.
 *
 * The bytes are those of LiteX's UARTBone: {command, words, address/4 (4, big endian)} and big endian words;
 * commands 1 write, 2 read, 3 and 4 the same with a fixed address. Several clients take turns by command,
 * and a client may send many commands before it reads answers. Arguments: port; hold (1: the clock stands until
 * a client has connected).
 */
#include "../module.h"

#define CLIENTS      8
#define IN_BYTES     65536
#define OUT_BYTES    65536
#define IDLE_CYCLES  16
#define ACCEPT_CYCLES 4096

enum { WRITE = 1, READ, WRITE_FIXED, READ_FIXED };

struct client {
	int fd;
	size_t in_used, in_done, out_used;
	uint8_t in[IN_BYTES], out[OUT_BYTES];
};

struct session {
	struct clock clock;
	int server;
	bool hold;
	struct client clients[CLIENTS], *current;
	unsigned last, wait;
	uint32_t accept_wait;
	/* Command under way. */
	uint8_t command;
	unsigned words, word;
	uint32_t address;
	bool acked;
	uint32_t answer;
	uint32_t *adr, *dat_w, *dat_r;
	uint8_t *sel, *cyc, *stb, *we, *ack, *err;
};

static int bus_new(void **session, char *args)
{
	struct session *s = calloc(1, sizeof *s);

	for(unsigned i = 0; i < CLIENTS; i++)
		s->clients[i].fd = -1;
	json_object *o = json_tokener_parse(args);

	s->hold = arg_int(o, "hold", 0);
	s->server = listen_tcp(arg_int(o, "port", 0), "bus");
	*session = s;
	return RC_OK;
}

static int bus_pads(void *session, struct pad_list_s *pads)
{
	struct session *s = session;

	if(!strcmp(pads->name, "sys_clk")) {
		s->clock.signal = pads->pads[0].signal;
		return RC_OK;
	}
	s->adr = pad_find(pads, "adr");
	s->dat_w = pad_find(pads, "dat_w");
	s->dat_r = pad_find(pads, "dat_r");
	s->sel = pad_find(pads, "sel");
	s->cyc = pad_find(pads, "cyc");
	s->stb = pad_find(pads, "stb");
	s->we = pad_find(pads, "we");
	s->ack = pad_find(pads, "ack");
	s->err = pad_find(pads, "err");
	*s->cyc = *s->stb = 0;
	return RC_OK;
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

static void hang_up(struct session *s, struct client *c)
{
	close(c->fd);
	c->fd = -1;
	c->in_used = c->in_done = c->out_used = 0;
	if(s->current == c) {
		s->current = NULL;
		*s->cyc = *s->stb = 0;
	}
}

/* Sends answers, fetches commands. */
static void serve(struct session *s, struct client *c)
{
	static const int one = 1;
	ssize_t n;

	if(c->out_used) {
		n = send(c->fd, c->out, c->out_used, MSG_NOSIGNAL);
		if(n > 0) {
			memmove(c->out, c->out + n, c->out_used - n);
			c->out_used -= n;
		} else if(errno != EAGAIN) {
			hang_up(s, c);
			return;
		}
	}
	if(c->in_done) {
		memmove(c->in, c->in + c->in_done, c->in_used - c->in_done);
		c->in_used -= c->in_done;
		c->in_done = 0;
	}
	if(c->in_used == IN_BYTES)
		return;
	n = recv(c->fd, c->in + c->in_used, IN_BYTES - c->in_used, 0);
	if(n > 0) {
		c->in_used += n;
		/* Clients that send byte by byte wait for acknowledges. */
		setsockopt(c->fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
	} else if(n == 0 || errno != EAGAIN) {
		hang_up(s, c);
	}
}

/* Whether a whole command waits and its answer has room. */
static bool complete(const struct client *c)
{
	const uint8_t *p = c->in + c->in_done;
	size_t have = c->in_used - c->in_done;

	if(c->fd < 0 || have < 6)
		return false;
	if(p[0] == WRITE || p[0] == WRITE_FIXED)
		return have >= 6 + 4u*p[1];
	return OUT_BYTES - c->out_used >= 4u*p[1];
}

static void drive(struct session *s)
{
	struct client *c = s->current;
	bool fixed = s->command == WRITE_FIXED || s->command == READ_FIXED;

	*s->adr = s->address + (fixed ? 0 : s->word);
	*s->we = s->command == WRITE || s->command == WRITE_FIXED;
	if(*s->we)
		*s->dat_w = get32(c->in + c->in_done + 4*s->word);
	*s->sel = 15;
	*s->cyc = *s->stb = 1;
}

static void next_command(struct session *s)
{
	for(unsigned i = 1; i <= CLIENTS; i++) {
		struct client *c = &s->clients[(s->last + i) % CLIENTS];

		while(complete(c)) {
			const uint8_t *p = c->in + c->in_done;

			s->command = p[0];
			s->words = p[1];
			s->address = get32(p + 2);
			s->word = 0;
			if(s->command < WRITE || s->command > READ_FIXED) {
				/* Out of step: search the next command byte. */
				c->in_done++;
				continue;
			}
			c->in_done += 6;
			if(!s->words)
				continue;
			s->current = c;
			s->last = c - s->clients;
			drive(s);
			return;
		}
	}
}

static void word_done(struct session *s)
{
	struct client *c = s->current;
	bool write = s->command == WRITE || s->command == WRITE_FIXED;

	if(!write) {
		for(int shift = 24; shift >= 0; shift -= 8)
			c->out[c->out_used++] = s->answer >> shift;
	}
	if(++s->word < s->words) {
		drive(s);
		return;
	}
	*s->cyc = *s->stb = 0;
	if(write)
		c->in_done += 4*s->words;
	s->current = NULL;
	next_command(s);
	/* The last of those that wait: answer at once. */
	if(s->current != c || c->out_used > OUT_BYTES/2)
		serve(s, c);
}

static int bus_tick(void *session, uint64_t time)
{
	struct session *s = session;
	enum edge edge = clock_edge(&s->clock);

	(void)time;
	if(s->current) {
		/* An acknowledge may depend on what was driven: it is looked at in the middle of the clock. */
		if(edge == EDGE_FALLING && (*s->ack || *s->err)) {
			s->acked = true;
			s->answer = *s->dat_r;
		} else if(edge == EDGE_RISING && s->acked) {
			s->acked = false;
			word_done(s);
		}
		return RC_OK;
	}
	if(edge != EDGE_RISING)
		return RC_OK;
	if(s->hold) {
		struct pollfd asked = { .fd = s->server, .events = POLLIN };

		/* A signal ends the wait as well. */
		s->hold = poll(&asked, 1, 100) == 0;
		s->accept_wait = ACCEPT_CYCLES;
		if(s->hold)
			return RC_OK;
	}
	if(++s->accept_wait >= ACCEPT_CYCLES) {
		s->accept_wait = 0;
		for(unsigned i = 0; i < CLIENTS; i++) {
			if(s->clients[i].fd < 0) {
				s->clients[i].fd = accept_tcp(s->server);
				break;
			}
		}
	}
	if(++s->wait >= IDLE_CYCLES) {
		s->wait = 0;
		for(unsigned i = 0; i < CLIENTS; i++)
			if(s->clients[i].fd >= 0)
				serve(s, &s->clients[i]);
		next_command(s);
	}
	return RC_OK;
}

MODULE("roce_bus", bus_new, bus_pads, bus_tick)
