/* SPDX-License-Identifier: BSD-2-Clause */
/* Neighbours: learns who is on the wire from ARP, announces itself when the link comes up. */
#include <string.h>

#include "firmware.h"

struct neighbour neighbours[NEIGHBOURS];
unsigned neighbour_count;

#define ARP_BYTES 42
#define ETHERTYPE_ARP 0x0806

static uint8_t *slot_rx(uint32_t slot)
{
	return (uint8_t *)(SLOWPATH_RX_BASE + slot*SLOWPATH_SLOT_SIZE);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

static void learn(const uint8_t *mac, uint32_t ip)
{
	unsigned entry = 0;

	if(!ip || ip == slowpath_ip_address_read())
		return;
	/* The same address, or a free entry, or the one seen longest ago. */
	for(unsigned i = 0; i < NEIGHBOURS; i++) {
		if(neighbours[i].ip == ip) {
			entry = i;
			break;
		}
		if(i >= neighbour_count) {
			entry = i;
			break;
		}
		if(clock_ms() - neighbours[i].seen_ms > clock_ms() - neighbours[entry].seen_ms)
			entry = i;
	}
	if(entry >= neighbour_count)
		neighbour_count = entry + 1;
	if(neighbours[entry].ip != ip || memcmp(neighbours[entry].mac, mac, 6))
		log_event(EVENT_NEIGHBOUR, ip, get32(mac + 2));
	neighbours[entry].ip = ip;
	memcpy(neighbours[entry].mac, mac, 6);
	neighbours[entry].seen_ms = clock_ms();
	CONTROL(STATUS_NEIGHBOURS) = neighbour_count;
}

static void receive(const uint8_t *frame, uint32_t length)
{
	uint8_t arp[ARP_BYTES];

	if(length < ARP_BYTES || frame[12] != ETHERTYPE_ARP >> 8 || frame[13] != (ETHERTYPE_ARP & 0xff))
		return;
	for(unsigned i = 0; i < ARP_BYTES; i++)
		arp[i] = frame[i];
	/* Ethernet, IPv4, six and four bytes. */
	if(get32(arp + 14) != 0x00010800 || arp[18] != 6 || arp[19] != 4)
		return;
	learn(arp + 22, get32(arp + 28));
}

void network_poll(void)
{
	if(!(slowpath_cpu_sram_writer_ev_pending_read() & 1))
		return;
	uint32_t length = slowpath_cpu_sram_writer_length_read();

	if(length <= SLOWPATH_SLOT_SIZE)
		receive(slot_rx(slowpath_cpu_sram_writer_slot_read()), length);
	slowpath_cpu_sram_writer_ev_pending_write(1);
}

static void send_arp(uint32_t target)
{
	static uint32_t slot;
	uint64_t own = slowpath_mac_address_read();
	uint32_t ip = slowpath_ip_address_read();
	uint8_t frame[60] = { 0 };
	volatile uint32_t *words;

	if(!slowpath_cpu_sram_reader_ready_read())
		return;
	memset(frame, 0xff, 6);
	for(unsigned i = 0; i < 6; i++)
		frame[6 + i] = frame[22 + i] = own >> 8*(5 - i);
	for(unsigned i = 0; i < 4; i++) {
		frame[28 + i] = ip >> 8*(3 - i);
		frame[38 + i] = target >> 8*(3 - i);
	}
	frame[12] = ETHERTYPE_ARP >> 8;
	frame[13] = ETHERTYPE_ARP & 0xff;
	frame[15] = 1;
	frame[16] = 8;
	frame[18] = 6;
	frame[19] = 4;
	frame[21] = 1;
	slot = (slot + 1) % SLOWPATH_TX_SLOTS;
	words = (volatile uint32_t *)(SLOWPATH_TX_BASE + slot*SLOWPATH_SLOT_SIZE);
	for(unsigned i = 0; i < sizeof frame/4; i++)
		words[i] = frame[4*i] | frame[4*i + 1] << 8 | frame[4*i + 2] << 16 | (uint32_t)frame[4*i + 3] << 24;
	slowpath_cpu_sram_reader_slot_write(slot);
	slowpath_cpu_sram_reader_length_write(sizeof frame);
	slowpath_cpu_sram_reader_start_write(1);
}

void network_announce(void)
{
	send_arp(slowpath_ip_address_read());
}

void network_resolve(uint32_t ip)
{
	send_arp(ip);
}
