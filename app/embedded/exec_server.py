"""Takes the identity for a server, asks the kernel to end it with its parent, then executes the server.

Run as a script: `python -I -S exec_server.py SIGNAL PARENT KIND UID GID ACCESS -- program arguments`.
It is a program of its own because Python between fork and exec (`preexec_fn`) can deadlock in a parent with
threads. An exec keeps the process id, so the server itself is the parent's child.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
ACCESS = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
REFUSED = 126  # exit code: this identity cannot be taken, or has no access to the folder


def main(arguments: list[str]) -> None:
    cut = arguments.index("--")
    death_signal, parent, kind, uid, gid, needed = arguments[:cut]
    program = arguments[cut + 1 :]
    try:
        enter(kind, int(uid), int(gid))
    except OSError as error:
        refuse(f"cannot run as {kind} {uid}: {error}")
    letters, _, folder = needed.partition(":")
    if folder and not os.access(folder, sum(ACCESS[letter] for letter in letters)):
        refuse(f"{kind} {uid} has no {letters} access to {folder}")
    # This must come after `enter`: a change of credentials clears the death signal.
    die_with_parent(int(death_signal), int(parent))
    try:
        os.execv(program[0], program)
    except OSError as error:
        refuse(f"{kind} {uid} cannot run {program[0]}: {error}")


def enter(kind: str, uid: int, gid: int) -> None:
    """Take the identity. `self`: no change. `namespace`: the process sees itself as `uid`. `user`: it is
    `uid`."""
    if kind == "namespace":
        outside = os.geteuid(), os.getegid()
        if libc().unshare(CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "user namespaces are refused")
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid} {outside[0]} 1")
        write("/proc/self/gid_map", f"{gid} {outside[1]} 1")
    elif kind == "user":
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def die_with_parent(signal_number: int, parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return  # other systems have no death signal; there the next start ends a server that was left behind
    libc().prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(REFUSED)  # the parent died before the kernel knew the death signal


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def refuse(reason: str) -> None:
    print(f"gapless: {reason}", file=sys.stderr)
    sys.exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
