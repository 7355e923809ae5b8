/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The Ethernet wire of the port: 512-bit beats of the PHY model to frames and back, with faults.
 *
 * Arguments: mode unix | tap | pcap | none; local, remote (paths of datagram sockets, one frame each);
 * tap (name); play, mac, pause (pcap: file, frames to this MAC only, clocks between frames); record (pcap file of
 * all frames as they pass the port); ns (simulated nanoseconds of a clock); seed; loss, duplicate, reorder, corrupt,
 * fcs (probabilities, both directions); delay (most clocks that a frame is held).
 *
 * corrupt turns a bit behind the Ethernet header, unseen by the MAC; fcs marks the frame bad as a MAC does.
 * A peer that is slow stops the simulated time; a peer that is not there loses frames.
 */
#include "../module.h"

#include <linux/if_tun.h>
#include <net/if.h>
#include <signal.h>

#define BEAT        64
#define FRAME_MAX   9728
#define QUEUE       256
#define POLL_CYCLES 16
#define PEER_WAIT_MS 5000

struct frame {
	struct frame *next;
	uint64_t due;
	size_t size;
	bool bad;
	uint8_t data[FRAME_MAX];
};

struct queue {
	struct frame *head, **tail;
	unsigned count;
};

enum counter { TAKEN, GIVEN, LOST, DUPLICATED, REORDERED, CORRUPTED, BAD_FCS, DELAYED, NO_PEER, COUNTERS };
static const char *const counter_names[COUNTERS] = {
	"from_soc", "to_soc", "lost", "duplicated", "reordered", "corrupted", "bad_fcs", "delayed", "no_peer" };

struct session {
	struct clock clock;
	uint8_t *tx_valid, *tx_ready, *tx_last, *tx_data, *tx_keep;
	uint8_t *rx_valid, *rx_last, *rx_data, *rx_keep, *rx_error;
	int fd;
	bool datagrams, tap;
	struct sockaddr_un peer;
	FILE *record, *play;
	bool play_swapped, playing;
	uint8_t mac[6];
	bool only_mac;
	uint64_t pause, play_due;
	double ns;
	uint64_t now, random;
	double loss, duplicate, reorder, corrupt, fcs;
	uint64_t delay;
	struct frame *sending, *receiving, *held[2];
	size_t position;
	unsigned wait;
	struct queue in, out;
	uint64_t counters[COUNTERS];
	uint64_t seed;
	const char *stats;
};

static struct session *the_wire;

/* Queues --------------------------------------------------------------------------------------------- */

static void push(struct queue *q, struct frame *f)
{
	f->next = NULL;
	if(!q->head)
		q->tail = &q->head;
	*q->tail = f;
	q->tail = &f->next;
	q->count++;
}

static struct frame *pop_due(struct queue *q, uint64_t now)
{
	struct frame *f = q->head;

	if(!f || f->due > now)
		return NULL;
	q->head = f->next;
	q->count--;
	return f;
}

/* Faults --------------------------------------------------------------------------------------------- */

static uint64_t random64(struct session *s)
{
	s->random ^= s->random << 13;
	s->random ^= s->random >> 7;
	s->random ^= s->random << 17;
	return s->random*0x2545f4914f6cdd1dull;
}

static bool happens(struct session *s, double probability, enum counter counter)
{
	if(probability <= 0 || (random64(s) >> 11)*0x1p-53 >= probability)
		return false;
	s->counters[counter]++;
	return true;
}

/* Takes a frame over; what is left of it after the faults goes to `to`. `way`: 0 from the SoC, 1 to it. */
static void pass(struct session *s, struct queue *to, struct frame *f, int way)
{
	struct frame *before = s->held[way];

	if(happens(s, s->loss, LOST)) {
		free(f);
		return;
	}
	f->due = s->now;
	if(s->delay) {
		f->due += random64(s) % (s->delay + 1);
		/* The wire keeps its order unless `reorder` says otherwise. */
		if(to->head && to->count) {
			struct frame *last = to->head;

			while(last->next)
				last = last->next;
			if(f->due < last->due)
				f->due = last->due;
		}
		s->counters[DELAYED]++;
	}
	if(f->size > 14 && happens(s, s->corrupt, CORRUPTED)) {
		uint64_t bit = random64(s) % (8*(f->size - 14));

		f->data[14 + bit/8] ^= 1u << bit%8;
	}
	if(way && happens(s, s->fcs, BAD_FCS))
		f->bad = true;
	if(!before && happens(s, s->reorder, REORDERED)) {
		s->held[way] = f;
		return;
	}
	if(happens(s, s->duplicate, DUPLICATED)) {
		struct frame *copy = malloc(sizeof *copy);

		memcpy(copy, f, sizeof *copy);
		push(to, copy);
	}
	push(to, f);
	if(before) {
		s->held[way] = NULL;
		before->due = f->due;
		push(to, before);
	}
}

/* Capture files -------------------------------------------------------------------------------------- */

static void put32(FILE *f, uint32_t value)
{
	fwrite(&value, 4, 1, f);
}

static void record_open(struct session *s, const char *path)
{
	s->record = fopen(path, "wb");
	if(!s->record)
		die("record", path);
	put32(s->record, 0xa1b23c4d);     /* nanoseconds */
	put32(s->record, 2 | 4 << 16);
	put32(s->record, 0);
	put32(s->record, 0);
	put32(s->record, 65535);
	put32(s->record, 1);              /* Ethernet */
	fflush(s->record);
}

static void record(struct session *s, const struct frame *f)
{
	uint64_t ns = s->now*s->ns;

	if(!s->record || f->bad)
		return;
	put32(s->record, ns/1000000000);
	put32(s->record, ns%1000000000);
	put32(s->record, f->size);
	put32(s->record, f->size);
	fwrite(f->data, f->size, 1, s->record);
}

static uint32_t play32(struct session *s, const uint8_t *p)
{
	uint32_t value;

	memcpy(&value, p, 4);
	return s->play_swapped ? __builtin_bswap32(value) : value;
}

static void play_open(struct session *s, const char *path)
{
	uint8_t header[24];
	uint32_t magic;

	s->play = fopen(path, "rb");
	if(!s->play)
		die("play", path);
	if(fread(header, sizeof header, 1, s->play) != 1) {
		fprintf(stderr, "play %s: shorter than a pcap header\n", path);
		exit(1);
	}
	memcpy(&magic, header, 4);
	s->play_swapped = magic == 0xd4c3b2a1 || magic == 0x4d3cb2a1;
	magic = play32(s, header);
	if(magic != 0xa1b2c3d4 && magic != 0xa1b23c4d) {
		fprintf(stderr, "play %s: not a pcap file (magic %08x)\n", path, magic);
		exit(1);
	}
	if(play32(s, header + 20) != 1) {
		fprintf(stderr, "play %s: link type %u, must be 1 (Ethernet)\n", path, play32(s, header + 20));
		exit(1);
	}
}

static struct frame *play_next(struct session *s)
{
	uint8_t header[16];

	while(fread(header, sizeof header, 1, s->play) == 1) {
		struct frame *f = calloc(1, sizeof *f);

		f->size = play32(s, header + 8);
		if(f->size > FRAME_MAX || fread(f->data, f->size, 1, s->play) != 1) {
			fprintf(stderr, "play: frame of %zu bytes cut or longer than %d\n", f->size, FRAME_MAX);
			free(f);
			break;
		}
		if(!s->only_mac || (f->data[0] & 1) || !memcmp(f->data, s->mac, 6))
			return f;
		free(f);
	}
	fclose(s->play);
	s->play = NULL;
	fprintf(stderr, "[wire] capture played\n");
	return NULL;
}

/* Host side ------------------------------------------------------------------------------------------ */

static void open_unix(struct session *s, json_object *o)
{
	struct sockaddr_un own = { .sun_family = AF_UNIX };
	const char *local = arg_text(o, "local"), *remote = arg_text(o, "remote");
	int size = 4 << 20;

	s->peer.sun_family = AF_UNIX;
	if(strlen(local) >= sizeof own.sun_path || strlen(remote) >= sizeof own.sun_path) {
		fprintf(stderr, "wire: a socket path must be shorter than %zu bytes\n", sizeof own.sun_path);
		exit(1);
	}
	strcpy(own.sun_path, local);
	strcpy(s->peer.sun_path, remote);
	unlink(local);
	s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	setsockopt(s->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	if(bind(s->fd, (void *)&own, sizeof own))
		die("wire", local);
	s->datagrams = true;
}

static void open_tap(struct session *s, const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	s->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if(s->fd < 0 || ioctl(s->fd, TUNSETIFF, &request))
		die("tap", name);
	s->tap = true;
}

static void send_host(struct session *s, struct frame *f)
{
	struct pollfd ready = { .fd = s->fd, .events = POLLOUT };
	ssize_t n;

	if(s->fd < 0)
		return;
	for(;;) {
		n = s->tap ? write(s->fd, f->data, f->size)
			: sendto(s->fd, f->data, f->size, 0, (void *)&s->peer, sizeof s->peer);
		if(n >= 0)
			return;
		if(errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
			break;
		/* The socket's own buffer, or the peer's queue, which poll does not see. */
		if(errno == EAGAIN && poll(&ready, 1, 1) < 0 && errno != EINTR)
			break;
		static unsigned waited;
		usleep(100);
		if(++waited > PEER_WAIT_MS*10) {
			waited = 0;
			break;
		}
	}
	s->counters[NO_PEER]++;
}

static struct frame *receive_host(struct session *s)
{
	static uint8_t buffer[FRAME_MAX];
	ssize_t n = read(s->fd, buffer, sizeof buffer);
	struct frame *f;

	if(n <= 0)
		return NULL;
	f = calloc(1, sizeof *f);
	f->size = n < 60 ? 60 : n;
	memcpy(f->data, buffer, n);
	return f;
}

/* Module --------------------------------------------------------------------------------------------- */

static void report(void)
{
	struct session *s = the_wire;
	FILE *f = s->stats ? fopen(s->stats, "w") : NULL;

	fprintf(stderr, "[wire] seed %llu", (unsigned long long)s->seed);
	if(f)
		fprintf(f, "{\"seed\": %llu", (unsigned long long)s->seed);
	for(unsigned i = 0; i < COUNTERS; i++) {
		if(s->counters[i] || i < LOST)
			fprintf(stderr, " %s %llu", counter_names[i], (unsigned long long)s->counters[i]);
		if(f)
			fprintf(f, ", \"%s\": %llu", counter_names[i], (unsigned long long)s->counters[i]);
	}
	fprintf(stderr, "\n");
	if(f) {
		fprintf(f, "}\n");
		fclose(f);
	}
	if(s->record)
		fclose(s->record);
}

static int wire_new(void **session, char *args)
{
	struct session *s = the_wire = calloc(1, sizeof *s);
	json_object *o = json_tokener_parse(args);
	const char *mode = arg_text(o, "mode"), *mac = arg_text(o, "mac");

	s->fd = -1;
	s->ns = arg_real(o, "ns");
	s->seed = arg_int(o, "seed", 1);
	s->random = s->seed*0x9e3779b97f4a7c15ull + 1;
	s->loss = arg_real(o, "loss");
	s->duplicate = arg_real(o, "duplicate");
	s->reorder = arg_real(o, "reorder");
	s->corrupt = arg_real(o, "corrupt");
	s->fcs = arg_real(o, "fcs");
	s->delay = arg_int(o, "delay", 0);
	s->pause = arg_int(o, "pause", 1000);
	s->stats = arg_text(o, "stats");
	if(mac && sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", s->mac, s->mac + 1, s->mac + 2, s->mac + 3, s->mac + 4, s->mac + 5) == 6)
		s->only_mac = true;
	if(arg_text(o, "record"))
		record_open(s, arg_text(o, "record"));
	if(!strcmp(mode, "unix"))
		open_unix(s, o);
	else if(!strcmp(mode, "tap"))
		open_tap(s, arg_text(o, "tap"));
	else if(!strcmp(mode, "pcap"))
		play_open(s, arg_text(o, "play"));
	fprintf(stderr, "[wire] %s, seed %llu\n", mode, (unsigned long long)s->seed);
	atexit(report);
	*session = s;
	return RC_OK;
}

static int wire_pads(void *session, struct pad_list_s *pads)
{
	struct session *s = session;

	if(!strcmp(pads->name, "sys_clk")) {
		s->clock.signal = pads->pads[0].signal;
		return RC_OK;
	}
	s->tx_valid = pad_find(pads, "tx_valid");
	s->tx_ready = pad_find(pads, "tx_ready");
	s->tx_last = pad_find(pads, "tx_last");
	s->tx_data = pad_find(pads, "tx_data");
	s->tx_keep = pad_find(pads, "tx_keep");
	s->rx_valid = pad_find(pads, "rx_valid");
	s->rx_last = pad_find(pads, "rx_last");
	s->rx_data = pad_find(pads, "rx_data");
	s->rx_keep = pad_find(pads, "rx_keep");
	s->rx_error = pad_find(pads, "rx_error");
	*s->tx_ready = *s->rx_valid = 0;
	return RC_OK;
}

static void from_soc(struct session *s)
{
	uint64_t keep;
	size_t size = BEAT;

	if(!s->sending)
		s->sending = calloc(1, sizeof *s->sending);
	if(*s->tx_last) {
		memcpy(&keep, s->tx_keep, 8);
		size = keep ? 64 - __builtin_clzll(keep) : BEAT;
	}
	if(s->sending->size + size <= FRAME_MAX) {
		memcpy(s->sending->data + s->sending->size, s->tx_data, size);
		s->sending->size += size;
	}
	if(*s->tx_last) {
		struct frame *f = s->sending;

		s->sending = NULL;
		s->counters[TAKEN]++;
		s->playing = true;
		record(s, f);
		pass(s, &s->out, f, 0);
	}
}

static void to_soc(struct session *s)
{
	struct frame *f = s->receiving;

	if(!f) {
		f = s->receiving = pop_due(&s->in, s->now);
		s->position = 0;
		if(!f) {
			*s->rx_valid = 0;
			return;
		}
		s->counters[GIVEN]++;
		record(s, f);
	}
	size_t size = f->size - s->position;
	bool last = size <= BEAT;
	uint64_t keep = last ? ~0ull >> (BEAT - size) : ~0ull;

	memcpy(s->rx_data, f->data + s->position, BEAT);
	memcpy(s->rx_keep, &keep, 8);
	*s->rx_last = last;
	*s->rx_error = last && f->bad;
	*s->rx_valid = 1;
	s->position += BEAT;
	if(last) {
		s->receiving = NULL;
		free(f);
	}
}

static void poll_host(struct session *s)
{
	struct frame *f;

	while((f = pop_due(&s->out, s->now))) {
		send_host(s, f);
		free(f);
	}
	while(s->fd >= 0 && s->in.count < QUEUE && (f = receive_host(s)))
		pass(s, &s->in, f, 1);
	/* A capture begins when the SoC has shown itself, so that its link is up. */
	if(s->play && s->playing && s->now >= s->play_due && (f = play_next(s))) {
		s->play_due = s->now + s->pause;
		pass(s, &s->in, f, 1);
	}
}

static int wire_tick(void *session, uint64_t time)
{
	struct session *s = session;

	(void)time;
	if(clock_edge(&s->clock) != EDGE_RISING)
		return RC_OK;
	s->now++;
	*s->tx_ready = 1;
	if(*s->tx_valid)
		from_soc(s);
	to_soc(s);
	if(++s->wait >= POLL_CYCLES) {
		s->wait = 0;
		poll_host(s);
	}
	return RC_OK;
}

MODULE("roce_wire", wire_new, wire_pads, wire_tick)
