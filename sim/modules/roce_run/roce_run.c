/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts clocks, ends the run, tells how fast it was. Arguments: cycles (0: no end), stats (path of a JSON file). */
#include "../module.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

struct session {
	struct clock clock;
	uint64_t cycles, limit;
	const char *stats;
	struct timespec began;
};

static struct session *running;
static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static double seconds_since(const struct timespec *t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec - t->tv_sec + (now.tv_nsec - t->tv_nsec)*1e-9;
}

static void report(void)
{
	struct session *s = running;
	struct rusage usage;
	double wall = seconds_since(&s->began), cpu;

	getrusage(RUSAGE_SELF, &usage);
	cpu = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec)*1e-6;
	fprintf(stderr, "[run] %llu cycles in %.2f s: %.0f cycles/s, %.0f cycles per CPU second\n", (unsigned long long)s->cycles, wall,
		s->cycles/wall, s->cycles/cpu);
	if(s->stats) {
		FILE *f = fopen(s->stats, "w");

		if(f) {
			fprintf(f, "{\"cycles\": %llu, \"seconds\": %.4f, \"cpu_seconds\": %.4f, \"cycles_per_second\": %.0f, "
				"\"cycles_per_cpu_second\": %.0f}\n", (unsigned long long)s->cycles, wall, cpu, s->cycles/wall, s->cycles/cpu);
			fclose(f);
		}
	}
}

static int run_new(void **session, char *args)
{
	struct session *s = running = calloc(1, sizeof *s);
	json_object *o = json_tokener_parse(args);

	s->limit = arg_int(o, "cycles", 0);
	s->stats = arg_text(o, "stats");
	clock_gettime(CLOCK_MONOTONIC, &s->began);
	/* Whoever started the run takes it along. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGPIPE, SIG_IGN);
	atexit(report);
	*session = s;
	return RC_OK;
}

static int run_pads(void *session, struct pad_list_s *pads)
{
	struct session *s = session;

	if(!strcmp(pads->name, "sys_clk"))
		s->clock.signal = pads->pads[0].signal;
	return RC_OK;
}

static int run_tick(void *session, uint64_t time)
{
	struct session *s = session;

	(void)time;
	if(clock_edge(&s->clock) == EDGE_RISING && (++s->cycles == s->limit || stop))
		exit(0);
	return RC_OK;
}

MODULE("roce_run", run_new, run_pads, run_tick)
