/* SPDX-License-Identifier: BSD-2-Clause */
/* The SoC's UART on the terminal, on a TCP port, or in a file. Arguments: mode console | tcp | file | none, port, path. */
#include "../module.h"

#define POLL_CYCLES 256

struct session {
	struct clock clock;
	uint8_t *out_valid, *out_ready, *out_data;
	uint8_t *in_valid, *in_ready, *in_data;
	int server, in, out;
	bool pending;
	unsigned wait;
	size_t used;
	char buffer[4096];
};

static int uart_new(void **session, char *args)
{
	struct session *s = calloc(1, sizeof *s);
	json_object *o = json_tokener_parse(args);
	const char *mode = arg_text(o, "mode");

	s->server = s->in = s->out = -1;
	if(!strcmp(mode, "console")) {
		s->in = STDIN_FILENO;
		s->out = STDOUT_FILENO;
		fcntl(s->in, F_SETFL, fcntl(s->in, F_GETFL) | O_NONBLOCK);
	} else if(!strcmp(mode, "tcp")) {
		s->server = listen_tcp(arg_int(o, "port", 0), "uart");
	} else if(!strcmp(mode, "file")) {
		s->out = open(arg_text(o, "path"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		if(s->out < 0)
			die("uart", arg_text(o, "path"));
	}
	*session = s;
	return RC_OK;
}

static int uart_pads(void *session, struct pad_list_s *pads)
{
	struct session *s = session;

	if(!strcmp(pads->name, "sys_clk")) {
		s->clock.signal = pads->pads[0].signal;
		return RC_OK;
	}
	s->out_valid = pad_find(pads, "source_valid");
	s->out_ready = pad_find(pads, "source_ready");
	s->out_data = pad_find(pads, "source_data");
	s->in_valid = pad_find(pads, "sink_valid");
	s->in_ready = pad_find(pads, "sink_ready");
	s->in_data = pad_find(pads, "sink_data");
	*s->in_valid = *s->out_ready = 0;
	return RC_OK;
}

/* Output never waits: what nobody takes is lost, as on a real line. */
static void flush(struct session *s)
{
	if(s->used && s->out >= 0 && write(s->out, s->buffer, s->used) < 0 && errno != EAGAIN && s->server >= 0) {
		close(s->out);
		s->in = s->out = -1;
	}
	s->used = 0;
}

static int uart_tick(void *session, uint64_t time)
{
	struct session *s = session;

	(void)time;
	if(clock_edge(&s->clock) != EDGE_RISING)
		return RC_OK;
	*s->out_ready = 1;
	if(*s->out_valid) {
		s->buffer[s->used++] = *s->out_data;
		if(s->used == sizeof s->buffer || *s->out_data == '\n')
			flush(s);
	}
	if(*s->in_valid && s->pending) {
		/* Driven since the last edge, so it was sampled at this one. */
		s->pending = false;
		*s->in_valid = 0;
	}
	if(++s->wait >= POLL_CYCLES) {
		s->wait = 0;
		flush(s);
		if(s->server >= 0 && s->in < 0)
			s->in = s->out = accept_tcp(s->server);
		if(s->in >= 0 && !s->pending && *s->in_ready) {
			char c;
			ssize_t n = read(s->in, &c, 1);

			if(n == 1) {
				*s->in_data = c;
				*s->in_valid = 1;
				s->pending = true;
			} else if(n == 0) {
				if(s->server >= 0)
					close(s->in);
				s->in = -1;
				if(s->server >= 0)
					s->out = -1;
			}
		}
	}
	return RC_OK;
}

MODULE("roce_uart", uart_new, uart_pads, uart_tick)
