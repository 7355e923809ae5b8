# SPDX-License-Identifier: BSD-2-Clause
"""Reference model: an independent reading of the protocol in plain Python; imports no gateware.

packet    frames <-> fields, ICRC             pcap      capture files
memory    regions, keys, access checks        qp        queue pairs, work requests, completions, profiles
checks responder unreliable                   the receiving half of a queue pair: RC, UC and UD
requester completer                           its sending half
endpoint  a station: frames in, frames out
capture compare replay                        captures with their set-up: read, judged, played
synthesize                                    captures of random work over a faulty wire
"""
