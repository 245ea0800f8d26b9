"""Whether the unit's filter lets the server make the system calls it makes.

Usage: syscalls.py BINARY UNIT DIRECTORY

Serves, decides, reloads, drains under strace; compares with the SystemCallFilter= lines.
"""

import pathlib
import re
import shutil
import signal
import subprocess
import sys

from running import Running


def sets():
    """The named sets of systemd, with what each holds."""
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
    """As systemd reads the lines: the first says that it is a list of what is allowed."""
    known = sets()
    calls = expanded("@default", known)
    for line in re.findall(r"^SystemCallFilter=(.*)$", unit, re.M):
        words = set().union(*(expanded(name, known) for name in line.lstrip("~").split()))
        calls = calls - words if line.startswith("~") else calls | words
    return calls


def made(binary, directory):
    """The system calls of a server that has done a bit of everything."""
    config = directory / "syscalls.yaml"
    shutil.copy("deploy/docker/config/tidegate.yaml", config)
    trace = directory / "syscalls.txt"
    strace = ["strace", "-f", "-qq", "-o", str(trace)]
    with Running(strace + [binary, "serve", "--config", str(config)], {}) as server:
        server.check()
        # Its own process is the first that strace saw.
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
    print(f"unit: lets through all {len(calls)} system calls the server made")


main()
