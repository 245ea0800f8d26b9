"""Checks that the filter of the unit allows the system calls of the server.

Usage: syscalls.py BINARY UNIT DIRECTORY

Serves, decides, reloads and drains under strace, and compares with the SystemCallFilter= lines.
"""

import pathlib
import re
import shutil
import signal
import subprocess
import sys

from running import Running


def sets():
    """Returns the named sets of systemd with their system calls."""
    listing = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    ).stdout
    found, current = {}, None
    for line in listing.splitlines():
        if line.startswith("@"):
            current = found.setdefault(line.strip(), [])
        elif current is not None and line.strip() and not line.strip().startswith("#"):
            current.append(line.strip())
    return found


def expanded(name, known):
    if not name.startswith("@"):
        return {name}
    return set().union(*(expanded(member, known) for member in known[name]))


def allowed(unit):
    """Returns the allowed calls as systemd reads the lines: the first makes it an allow list."""
    known = sets()
    calls = expanded("@default", known)
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        words = set().union(*(expanded(name, known) for name in line.lstrip("~").split()))
        calls = calls - words if line.startswith("~") else calls | words
    return calls


def made(binary, directory):
    """Returns the system calls of a server that has used all its functions."""
    config = directory / "syscalls.yaml"
    shutil.copy("deploy/docker/config/tidegate.yaml", config)
    trace = directory / "syscalls.txt"
    strace = ["strace", "-f", "-qq", "-o", str(trace)]
    with Running(strace + [binary, "serve", "--config", str(config)], {}) as server:
        server.check()
        # The process of the server is the first one in the trace.
        pid = int(trace.read_text().split(None, 1)[0])
        with config.open("a") as file:
            file.write("# changed\n")
        server.signal(signal.SIGHUP, pid)
        server.until_metric('tidegate_reloads_total{result="ok"}', 1)
        server.signal(signal.SIGTERM, pid)
        server.ended()
    return set(re.findall(r"^\d+ +([a-z0-9_]+)\(", trace.read_text(), re.M))


def main():
    binary, unit, directory = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    calls = made(binary, directory)
    missing = sorted(calls - allowed(unit.read_text()))
    if missing or "accept4" not in calls:
        sys.exit(f"{unit}: SystemCallFilter= denies what the server calls: {', '.join(missing)}")
    print(f"unit: allows all {len(calls)} system calls of the server")


main()
