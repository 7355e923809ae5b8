/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the modules of the simulation share. A module follows LiteX's interface (modules.h): arguments are a
 * JSON text, pads are pointers to the model's ports, tick() runs after every evaluation, at both edges.
 *
 * What a tick sees after a rising edge holds until the next one, and what it drives then is sampled there.
 */
#ifndef ROCE_MODULE_H
#define ROCE_MODULE_H

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <json-c/json.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "error.h"
#include "modules.h"

/* Arguments ------------------------------------------------------------------------------------------ */

static inline const char *arg_text(json_object *args, const char *key)
{
	json_object *value;

	return json_object_object_get_ex(args, key, &value) ? json_object_get_string(value) : NULL;
}

static inline int64_t arg_int(json_object *args, const char *key, int64_t otherwise)
{
	json_object *value;

	return json_object_object_get_ex(args, key, &value) ? json_object_get_int64(value) : otherwise;
}

static inline double arg_real(json_object *args, const char *key)
{
	json_object *value;

	return json_object_object_get_ex(args, key, &value) ? json_object_get_double(value) : 0.0;
}

/* Pads ----------------------------------------------------------------------------------------------- */

static inline void *pad_find(struct pad_list_s *list, const char *name)
{
	for(struct pad_s *p = list->pads; p->name; p++)
		if(!strcmp(p->name, name))
			return p->signal;
	fprintf(stderr, "pads %s have no signal %s\n", list->name, name);
	exit(1);
}

enum edge { EDGE_NONE, EDGE_RISING, EDGE_FALLING };

struct clock {
	uint8_t *signal, last;
};

static inline enum edge clock_edge(struct clock *clock)
{
	uint8_t now = *clock->signal, last = clock->last;

	clock->last = now;
	return now == last ? EDGE_NONE : now ? EDGE_RISING : EDGE_FALLING;
}

/* Sockets -------------------------------------------------------------------------------------------- */

static inline void die(const char *what, const char *name)
{
	fprintf(stderr, "%s %s: %s\n", what, name, strerror(errno));
	exit(1);
}

/* A listening socket on localhost; exits when the port is taken. The port is printed: 0 picks a free one. */
static inline int listen_tcp(int port, const char *who)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof a;
	char text[16];
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	snprintf(text, sizeof text, "%d", port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if(bind(fd, (void *)&a, sizeof a) || listen(fd, 4))
		die(who, text);
	getsockname(fd, (void *)&a, &size);
	fprintf(stderr, "[%s] tcp port %d\n", who, ntohs(a.sin_port));
	return fd;
}

static inline int accept_tcp(int server)
{
	int one = 1, fd = accept4(server, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if(fd >= 0)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

#define MODULE(name, new, pads, tick) \
	static struct ext_module_s ext_module = { name, NULL, new, pads, NULL, tick }; \
	int litex_sim_ext_module_init(int (*enroll)(struct ext_module_s *)); \
	int litex_sim_ext_module_init(int (*enroll)(struct ext_module_s *)) { return enroll(&ext_module); }

#endif
