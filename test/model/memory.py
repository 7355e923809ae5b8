# SPDX-License-Identifier: BSD-2-Clause
"""Memory regions and the checks that a key has to pass.

Ref: InfiniBand Architecture vol. 1 ch. 10.6 (keys, protection domains, access rights), 9.7.4.1.4.
Not supported: zero-based regions, type 1 windows.
"""
from roce_soc.verbs import ACCESS_LOCAL_WRITE, check_access


class Region:
    """A registered range of memory: [va, va + length) backed by `data` (a writable buffer).

    `access` holds ACCESS_ bits; `key` serves as lkey and rkey. `data` may be shared by regions.
    """
    def __init__(self, key, va, length, access, pd, data):
        self.key, self.va, self.length, self.access, self.pd, self.data = key, va, length, access, pd, data
        self.invalidatable = False   # by SEND with invalidate: windows of type 2 and fast registrations.

    def read(self, va, length):
        """Bytes of a range that was checked."""
        offset = va - self.va
        return bytes(self.data[offset:offset + length])

    def write(self, va, data):
        """Store bytes in a range that was checked."""
        offset = va - self.va
        self.data[offset:offset + len(data)] = data


class MemoryTable:
    """Regions by key."""
    def __init__(self):
        self.regions  = {}
        self.next_key = 0x100

    def register(self, va, length, access, *, key=None, pd=0, data=None):
        """Make a Region; data: its backing buffer, else zeros. ValueError names a bad argument."""
        check_access(access)
        if va < 0 or length < 0 or va + length > 1 << 64:
            raise ValueError(f"region must lie in 2^64 bytes, not {va:#x} + {length:#x}")
        if key is None:
            key, self.next_key = self.next_key, self.next_key + 0x101
        if not 0 <= key < 1 << 32 or key in self.regions:
            raise ValueError(f"key must be a free 32-bit number, not {key:#x}")
        if data is None:
            data = bytearray(length)
        if len(data) < length:
            raise ValueError(f"data must hold {length} bytes, not {len(data)}")
        region = self.regions[key] = Region(key, va, length, access, pd, data)
        return region

    def window(self, key, rkey, va, length, access):
        """Bind a window (type 2) to the region `key`: a part of it under another key."""
        region = self.regions[key]
        offset = va - region.va
        window = self.register(va, length, access | ACCESS_LOCAL_WRITE, key=rkey, pd=region.pd,
                               data=memoryview(region.data)[offset:offset + length])
        window.access, window.invalidatable = access, True
        return window

    def deregister(self, key):
        """Forget a region."""
        del self.regions[key]

    def check(self, key, va, length, access, pd):
        """(row, region): row names the row of errors.py that refuses the access, None where granted."""
        region = self.regions.get(key)
        if region is None:
            return "MR_KEY", None
        if region.pd != pd:
            return "MR_PD", None
        if va < region.va or va + length > region.va + region.length:
            return "MR_BOUNDS", None
        if access & ~region.access:
            return "MR_ACCESS", None
        return None, region
