# SPDX-License-Identifier: BSD-2-Clause
"""Reference model: an independent reading of the protocol in plain Python; imports no gateware.

packet    frames <-> fields, ICRC             pcap      capture files
memory    regions, keys, access checks        qp        queue pairs, work requests, completions, profiles
responder requester                           the two halves of a queue pair
endpoint  a station: frames in, frames out    capture compare replay   captures with their JSON, judged
"""
