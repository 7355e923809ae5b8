/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Link bring-up: reset, receiver with remote fault, transmitter, up; time-out, back-off, retry.
 *
 *   DOWN ─► RESET ─► WAIT_RESET ─► WAIT_ALIGN ─► WAIT_PEER ─► UP
 *             ▲           │            │             │        │
 *             └─ BACKOFF ◄┴────────────┴─────────────┴────────┘
 *
 * A failed attempt waits, twice as long each time. Every LINK_FULL_RESET-th attempt resets the whole core,
 * the others the receiver. Without block lock the other FEC setting is tried every second time.
 */
#include "firmware.h"

#define STATUS(status, flag) (((status) >> CSR_PHY_STATUS_##flag##_OFFSET) & 1)
#define BIT(flag) (1u << CSR_PHY_CONTROL_##flag##_OFFSET)

struct link link_info;

static const char *const state_names[] = LINK_NAMES;
static const char *const reason_names[] = REASON_NAMES;

static bool wanted;
static uint32_t since;           /* ms of the last change of state */
static uint32_t began;           /* ms of this attempt's start */
static uint32_t fec;             /* BIT(RSFEC_ENABLE) or 0 */
static uint32_t in_a_row;        /* failures since the link was last up */
static uint32_t no_locks;        /* of these, those without block lock */

const char *link_state_name(uint32_t state)
{
	return state < LINK_COUNT ? state_names[state] : "?";
}

const char *link_reason_name(uint32_t reason)
{
	return reason < REASON_COUNT ? reason_names[reason] : "?";
}

static void publish(void)
{
	CONTROL(STATUS_LINK_STATE) = link_info.state;
	CONTROL(STATUS_LINK_REASON) = link_info.reason;
	CONTROL(STATUS_LINK_ATTEMPTS) = link_info.attempts;
	CONTROL(STATUS_LINK_FAILURES) = link_info.failures;
	CONTROL(STATUS_LINK_UPS) = link_info.ups;
	CONTROL(STATUS_BACKOFF_MS) = link_info.backoff_ms;
}

static void go(uint32_t state, uint32_t reason)
{
	link_info.state = state;
	link_info.reason = reason;
	since = clock_ms();
	publish();
	log_event(EVENT_LINK_STATE, state, reason);
}

static bool waited(uint32_t ms)
{
	return clock_ms() - since >= ms;
}

/* Why there is no alignment, from the lowest layer up. */
static uint32_t cause(uint32_t status)
{
	if(!STATUS(status, MODULE_PRESENT))
		return REASON_NO_MODULE;
	if(!STATUS(status, POWERGOOD))
		return REASON_NO_POWER;
	if(!STATUS(status, TX_RESET_DONE) || !STATUS(status, RX_RESET_DONE))
		return REASON_RESET_TIMEOUT;
	if(STATUS(status, TX_DEAD))
		return REASON_TX_DEAD;
	if(!STATUS(status, BLOCK_LOCK))
		return REASON_NO_LOCK;
	if(!STATUS(status, ALIGNED))
		return REASON_NO_ALIGN;
	if(STATUS(status, HI_BER) || !STATUS(status, RX_STATUS))
		return REASON_HI_BER;
	if(STATUS(status, LOCAL_FAULT))
		return REASON_LOCAL_FAULT;
	return REASON_REMOTE_FAULT;
}

static void start(void)
{
	uint32_t resets = BIT(GT_RX_RESET) | BIT(RX_RESET) | BIT(TX_RESET);

	began = clock_ms();
	link_info.attempts++;
	if(in_a_row % LINK_FULL_RESET == LINK_FULL_RESET - 1)
		resets = BIT(SYS_RESET);
	/* Both directions take the FEC mode while they are in reset. */
	phy_control_write(fec | BIT(SEND_RFI) | resets);
	go(LINK_RESET, REASON_NONE);
}

static void fail(uint32_t reason)
{
	phy_control_write(fec | BIT(SEND_RFI));
	link_info.failures++;
	link_info.backoff_ms = link_info.backoff_ms ? 2*link_info.backoff_ms : LINK_BACKOFF_MS;
	if(link_info.backoff_ms > LINK_BACKOFF_MAX_MS)
		link_info.backoff_ms = LINK_BACKOFF_MAX_MS;
	in_a_row++;
	if(reason == REASON_NO_LOCK && ++no_locks % 2 == 0)
		fec ^= BIT(RSFEC_ENABLE);
	log_event(EVENT_LINK_FAIL, reason, link_info.backoff_ms);
	go(LINK_BACKOFF, reason);
}

void link_init(void)
{
	wanted = true;
	fec = phy_control_read() & BIT(RSFEC_ENABLE);
	if(STATUS(phy_status_read(), LINK_UP)) {
		/* Only the CPU was reset: a running link, and its queue pairs, go on. */
		request_find_qps();
		link_info.ups++;
		go(LINK_UP, REASON_NONE);
	} else {
		start();
	}
}

void link_request(bool up)
{
	wanted = up;
	if(!up && link_info.state != LINK_DOWN) {
		phy_control_write(fec | BIT(SEND_RFI));
		go(LINK_DOWN, REASON_ADMIN);
	} else if(up && link_info.state == LINK_DOWN) {
		link_restart();
	}
}

void link_restart(void)
{
	wanted = true;
	in_a_row = 0;
	no_locks = 0;
	link_info.backoff_ms = 0;
	start();
}

static void poll_up(uint32_t status)
{
	if(STATUS(status, LINK_UP))
		return;
	uint32_t reason = cause(status);

	if(reason == REASON_NO_ALIGN || reason == REASON_NO_LOCK)
		reason = REASON_ALIGN_LOST;
	log_event(EVENT_LINK_LOST, reason, status);
	/* The first attempt after a loss comes at once, with the receiver reset. */
	in_a_row = 0;
	link_info.backoff_ms = 0;
	start();
	link_info.reason = reason;
	publish();
}

void link_poll(void)
{
	uint32_t status = phy_status_read();

	switch(link_info.state) {
	case LINK_RESET:
		if(waited(LINK_RESET_MS)) {
			phy_control_write(fec | BIT(SEND_RFI));
			go(LINK_WAIT_RESET, REASON_NONE);
		}
		break;
	case LINK_WAIT_RESET:
		if(STATUS(status, TX_RESET_DONE) && STATUS(status, RX_RESET_DONE) && STATUS(status, POWERGOOD)) {
			phy_control_write(fec | BIT(SEND_RFI) | BIT(RX_ENABLE));
			go(LINK_WAIT_ALIGN, REASON_NONE);
		} else if(waited(LINK_WAIT_RESET_MS)) {
			fail(cause(status));
		}
		break;
	case LINK_WAIT_ALIGN:
		if(STATUS(status, ALIGNED) && STATUS(status, RX_STATUS)) {
			phy_control_write(fec | BIT(RX_ENABLE) | BIT(TX_ENABLE));
			go(LINK_WAIT_PEER, REASON_NONE);
		} else if(waited(LINK_WAIT_ALIGN_MS)) {
			fail(cause(status));
		}
		break;
	case LINK_WAIT_PEER:
		if(STATUS(status, LINK_UP)) {
			link_info.ups++;
			link_info.backoff_ms = 0;
			in_a_row = 0;
			no_locks = 0;
			phy_latched_write(phy_latched_read());
			log_event(EVENT_LINK_UP, link_info.attempts, clock_ms() - began);
			go(LINK_UP, REASON_NONE);
			network_announce();
		} else if(!STATUS(status, ALIGNED) || waited(LINK_WAIT_PEER_MS)) {
			fail(cause(status));
		}
		break;
	case LINK_UP:
		poll_up(status);
		break;
	case LINK_BACKOFF:
		if(waited(link_info.backoff_ms))
			start();
		break;
	default:
		break;
	}
	if(!wanted && link_info.state != LINK_DOWN)
		link_request(false);
}
