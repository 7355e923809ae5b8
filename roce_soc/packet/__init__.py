# SPDX-License-Identifier: BSD-2-Clause
"""Wire format: frames to header records and payload, and back."""
