"""Tests that are left to other targets than `make test`, because they take a minute or more."""

from __future__ import annotations

import os

import pytest

EVERYTHING = bool(os.environ.get("ESSAIM_TEST_ALL"))
LIBVIRT = bool(os.environ.get("ESSAIM_TEST_LIBVIRT"))
SLURM_VMS = bool(os.environ.get("ESSAIM_TEST_LIBVIRT_SLURM"))

#: Another test in `make test` proves nearly the same.
in_test_all = pytest.mark.skipif(not EVERYTHING, reason="a minute: `make test-all`")
#: Virtual machines, emulated; one test of `make test` raises some.
in_test_libvirt = pytest.mark.skipif(not LIBVIRT, reason="minutes: `make test-libvirt`")
#: Whole Debian systems, emulated.
in_slurm_libvirt = pytest.mark.skipif(not SLURM_VMS, reason="many minutes: `make slurm-libvirt`")
