# SPDX-License-Identifier: BSD-2-Clause
"""Classic pcap files, Ethernet link type, any byte order, micro- or nanoseconds.

Ref: pcap-savefile(5). Not supported: pcapng (ValueError says so).
"""
import struct

LINKTYPE_ETHERNET = 1
_MAGIC = {0xa1b2c3d4: 1000, 0xa1b23c4d: 1}   # magic -> ns per unit of the fraction.
_PCAPNG = 0x0a0d0d0a


def read_pcap(path):
    """[(time in ns, frame)] of a file; ValueError names what is wrong with it."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 24:
        raise ValueError(f"{path}: pcap header needs 24 bytes, file has {len(data)}")
    for order in "<>":
        magic = struct.unpack_from(order + "I", data)[0]
        if magic in _MAGIC:
            break
    else:
        if magic == _PCAPNG:
            raise ValueError(f"{path}: pcapng, not pcap (convert: editcap -F pcap)")
        raise ValueError(f"{path}: magic must be that of pcap, not {magic:#010x}")
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xffff
    if link != LINKTYPE_ETHERNET:
        raise ValueError(f"{path}: link type must be {LINKTYPE_ETHERNET} (Ethernet), not {link}")
    frames, offset = [], 24
    while offset < len(data):
        if offset + 16 > len(data):
            raise ValueError(f"{path}: record header of frame {len(frames) + 1} is cut at {len(data) - offset} of 16 bytes")
        seconds, fraction, captured, length = struct.unpack_from(order + "IIII", data, offset)
        offset += 16
        if captured != length or offset + captured > len(data):
            raise ValueError(f"{path}: frame {len(frames) + 1} is cut: {min(captured, len(data) - offset)} of {length} bytes")
        frames.append((seconds*1_000_000_000 + fraction*_MAGIC[magic], data[offset:offset + captured]))
        offset += captured
    return frames


class PcapWriter:
    """Appends frames to a pcap file; nanosecond format. Use as a context manager or close()."""
    def __init__(self, path):
        self.file = open(path, "wb")
        self.file.write(struct.pack("<IHHIIII", 0xa1b23c4d, 2, 4, 0, 0, 1 << 16, LINKTYPE_ETHERNET))

    def write(self, frame, time_ns=0):
        """One frame without FCS."""
        seconds, fraction = divmod(int(time_ns), 1_000_000_000)
        self.file.write(struct.pack("<IIII", seconds, fraction, len(frame), len(frame)) + bytes(frame))

    def close(self):
        """Close the file."""
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def write_pcap(path, frames):
    """Write [(time in ns, frame)]."""
    with PcapWriter(path) as writer:
        for time_ns, frame in frames:
            writer.write(frame, time_ns)
