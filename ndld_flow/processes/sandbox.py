"""A sandbox of the Linux kernel for this process and all that it starts: files by Landlock, sockets by seccomp.

Neither needs privileges, neither can be undone, and both hold against native code, unlike hooks of Python. See
https://docs.kernel.org/userspace-api/landlock.html and seccomp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import BackendError

LEAST_ABI = 3
"""Version of Landlock that restricts reading, writing, renaming and truncating (Linux 6.2)."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of Landlock's system calls, the same on all architectures."""
_ABI_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 10, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ALL_SINCE_ABI = {3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""ABI -> all rights over files that it knows."""
_READ = _READ_FILE | _READ_DIR
_NO_DEVICES = ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK | _MAKE_FIFO | _IOCTL_DEV)
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule for a single file may have."""
_TCP_SINCE_ABI, _TCP = 4, 0b11
_SCOPES_SINCE_ABI, _SCOPES = 6, 0b11
"""No abstract Unix sockets, and no signals to processes outside."""

_CAPABILITIES, _CAPABILITIES_VERSION, _DROP_FROM_BOUNDING_SET = 64, 0x20080522, 24
_NO_NEW_PRIVS, _SECCOMP_FILTER, _SET_FILTER_FLAGS = 38, 1, 1
_SYSCALLS = {
    "x86_64": (
        0xC000003E,
        317,
        {
            **dict.fromkeys((41, 42, 43, 49, 50, 288), errno.EACCES),
            **dict.fromkeys(
                (101, 310, 311, 425, 248, 249, 250, 321, 175, 313, 176, 246, 320, 304, 308, 323, 438), errno.EPERM
            ),
        },
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            **dict.fromkeys((198, 203, 202, 200, 201, 242), errno.EACCES),
            **dict.fromkeys(
                (117, 270, 271, 425, 217, 218, 219, 280, 105, 273, 106, 104, 294, 265, 268, 282, 438), errno.EPERM
            ),
        },
    ),
}
"""Architecture -> the kernel's number for it, that of `seccomp`, and the denied system calls with their errors.

Sockets: socket, connect, accept, bind, listen, accept4; `socketpair` is allowed, which connects processes inside. Ways
around: ptrace, process_vm_readv and _writev, io_uring_setup, add_key, request_key, keyctl, bpf, init_module,
finit_module, delete_module, kexec_load and _file_load, open_by_handle_at, setns, userfaultfd, pidfd_getfd.
"""
_X32_BIT = 0x40000000
"""System calls of x86-64's x32 mode have other numbers."""
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


@dataclass(frozen=True)
class Access:
    """The paths that a sandboxed process may use, with everything below them. Missing ones are left out."""

    read: tuple[Path, ...] = ()
    list: tuple[Path, ...] = ()
    """Folders whose names may be listed, with those below, but whose files may not be read."""
    execute: tuple[Path, ...] = ()
    """Read and execute."""
    write: tuple[Path, ...] = ()
    """Read, write, create and remove files and folders."""
    devices: tuple[Path, ...] = ()


def find_obstacle() -> str:
    """Return the reason why this machine has no sandbox; empty if it has one."""
    if not sys.platform.startswith("linux"):
        return f"{platform.system()} has no sandbox that ndld-flow can use"
    if platform.machine() not in _SYSCALLS or sys.maxsize < 2**32:
        return f"the sandbox knows the system calls of {' and '.join(_SYSCALLS)}, not those of {platform.machine()}"
    abi = _landlock_abi()
    if abi < LEAST_ABI:
        has = "has no Landlock" if abi < 1 else f"has version {abi} of Landlock, and {LEAST_ABI} is needed"
        return f"its kernel ({platform.release()}) {has}: Linux 6.2 and later have it, unless it is switched off"
    return ""


def enter_sandbox(access: Access) -> None:
    """Restrict this process, and all that it starts, to these paths and to no sockets, for ever.

    Call it before there are threads. Raises BackendError if the machine has no sandbox.
    """
    obstacle = find_obstacle()
    if obstacle:
        raise BackendError(f"no sandbox: {obstacle}.")
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        raise BackendError(f"no sandbox: this process has {threads} threads, and it would hold for one of them only.")
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _drop_capabilities(libc)
    _restrict_files(libc, access)
    _forbid_sockets(libc)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up root's capabilities: with CAP_PERFMON, the environment of every process can be read in spite of Landlock.

    Programs that root starts would get them back without `_NO_NEW_PRIVS`.
    """
    for capability in range(_CAPABILITIES):
        libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)  # fails for users who have none, which is as good
    header, none = struct.pack("=Ii", _CAPABILITIES_VERSION, 0), bytes(24)
    _check(libc.capset(header, none), "capset")


def _landlock_abi() -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ABI_FLAG))


def _restrict_files(libc: ctypes.CDLL, access: Access) -> None:
    abi = _landlock_abi()
    handled = _ALL_SINCE_ABI[5 if abi >= 5 else 3]
    network = _TCP if abi >= _TCP_SINCE_ABI else 0
    scopes = _SCOPES if abi >= _SCOPES_SINCE_ABI else 0
    size = 24 if abi >= _SCOPES_SINCE_ABI else 16 if abi >= _TCP_SINCE_ABI else 8
    attributes = struct.pack("=QQQ", handled, network, scopes)
    ruleset = _check(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "landlock_create_ruleset")
    try:
        for paths, rights in (
            (access.read, _READ),
            (access.list, _READ_DIR),
            (access.execute, _READ | _EXECUTE),
            (access.write, handled & _NO_DEVICES),
            (access.devices, _READ_FILE | _WRITE_FILE | (_IOCTL_DEV & handled)),
        ):
            _allow(libc, ruleset, paths, rights)
        _check(libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, paths: Iterable[Path], rights: int) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
                rule = struct.pack("=Qi", rights if is_folder else rights & _OF_FILES, place)
                _check(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), "landlock_add_rule")
            finally:
                os.close(place)


def _forbid_sockets(libc: ctypes.CDLL) -> None:
    """Install a filter of system calls: those of another architecture end the process, denied ones give an error."""
    machine, seccomp, denied = _SYSCALLS[platform.machine()]
    lines = [
        (_LOAD, 0, 0, 4),  # the architecture
        (_JUMP_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number of the call
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
    ]
    for number, error in denied.items():
        lines += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = struct.pack("@HP", len(lines), ctypes.addressof(code))
    _check(libc.syscall(seccomp, _SECCOMP_FILTER, _SET_FILTER_FLAGS, program), "seccomp")


def _check(result: int, call: str) -> int:
    if result < 0:
        raise BackendError(f"no sandbox: the system call {call} failed: {os.strerror(ctypes.get_errno())}.")
    return result
