"""Runs the shell snippets of the documentation the way a reader does: as processes, page by page.

Every page has separate namespaces for the network, processes and mounts. So ports are those of the
page, everything that it starts ends with it, and all changes to the file system are dropped: the
clone, /etc, /usr and the home directory are copy-on-write. Programs that need a cluster or a
registry, and the compiler, are replaced (stand_ins.py).

    sessions.py TARGET                runs all pages
    sessions.py TARGET --page PAGE    runs one page, within its namespaces
"""

import fcntl
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import checks
from snippets import OTHERS, Bounded, Checked, Run, Serve, Shown, entry_of, pages, snippets

# No snippet may take longer, in seconds.
TIMEOUT = 120
HERE = pathlib.Path(__file__).resolve().parent
STAND_INS = ("cargo", "docker", "helm", "kubectl", "systemctl")
# What a page may change.
CHANGED = ("/etc", "/usr", os.path.expanduser("~"), "/run")

# Where the changes are kept, in memory.
CHANGES = pathlib.Path("/mnt")

# Numbers that differ between runs: times, dates and ports.
VARYING = re.compile(r'((?:_ms|_seconds)":|;t=|Retry-After: )\d+', re.IGNORECASE)


class Failed(Exception):
    pass


def enter(target):
    """Makes the file system copy-on-write and brings the loopback interface up."""
    with socket.socket() as any_socket:
        up = struct.pack("16sh", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    command("mount", "-t", "tmpfs", "changes", CHANGES)
    for number, lower in enumerate([*CHANGED, os.getcwd()]):
        upper, work = CHANGES / f"{number}.upper", CHANGES / f"{number}.work"
        upper.mkdir()
        work.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        command("mount", "-t", "overlay", "overlay", "-o", options, lower)
    # The mounted directory, in place of the one below it.
    os.chdir(os.getcwd())
    bin = CHANGES / "bin"
    bin.mkdir()
    for name in STAND_INS:
        (bin / name).symlink_to(HERE / "stand_ins.py")
    for name in ("tidegate", "tidegate-bench"):
        (bin / name).symlink_to(target / "debug" / name)
    if valkey := os.environ.get("VALKEY_SERVER"):
        (bin / "valkey-server").symlink_to(pathlib.Path(valkey).resolve())
    gateways = target / "gateways" / "bin"
    os.environ["PATH"] = f"{bin}:{gateways}:{os.environ['PATH']}:/usr/sbin"
    os.environ["DOCS_TARGET"] = str(target)


def command(*args):
    subprocess.run([str(arg) for arg in args], check=True, timeout=TIMEOUT)


class Session:
    """A page that is being read: what it has started and printed."""

    def __init__(self, page, target):
        self.page, self.target = page, target
        self.log, self.logs, self.position = None, 0, 0

    def shell(self, text, timeout=TIMEOUT, accepted=(0,)):
        """Runs a snippet in a shell and returns its output."""
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
            if None not in accepted:
                raise Failed(f"it does not end within {timeout} s\n{printed}{errors}")
            return printed
        if process.returncode not in accepted:
            raise Failed(f"exit status {process.returncode}\n{printed}{errors}")
        return printed

    def run(self, text):
        # Processes that a snippet leaves running would keep its output open, so it is a file.
        self.next_log()
        try:
            self.shell(f"exec >{self.log} 2>&1\n{text}")
        except Failed as error:
            raise Failed(f"{error}{self.log.read_text()}")

    def next_log(self):
        self.logs += 1
        self.log, self.position = CHANGES / f"log.{self.logs}", 0

    def run_bounded(self, text, seconds):
        """Runs each line for a limited time. A command that is still running then has started."""
        lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
        with ThreadPoolExecutor(2) as runs:
            list(runs.map(lambda line: self.shell(line, seconds, (0, None)), lines))

    def serve(self, text, ports):
        """Starts a snippet whose last command runs until Ctrl-C, which ends an earlier one."""
        self.stop()
        self.next_log()
        command = f"exec >{self.log} 2>&1\n{text}"
        server = subprocess.Popen(["bash", "-euo", "pipefail", "-c", command], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + TIMEOUT
        while not all(is_open(port) for port in ports):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"no answer on all of {ports}\n{self.log.read_text()}")
            time.sleep(0.02)

    def stop(self):
        """Ends everything that the page has started. This process is the first of its namespace."""
        deadline = time.monotonic() + TIMEOUT
        try:
            # A shell without a terminal lets background processes ignore SIGINT.
            os.kill(-1, signal.SIGTERM)
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.02)
            raise Failed("a process does not end on SIGTERM")
        except (ProcessLookupError, ChildProcessError):
            return

    def expect(self, text):
        """Looks for each line in the output of the snippet before, in order."""
        for line in text.splitlines():
            line, deadline = VARYING.sub(r"\1N", line.strip()), time.monotonic() + 5
            while line not in (printed := self.printed_lines())[self.position :]:
                if time.monotonic() > deadline:
                    raise Failed(f"not in the output of the snippet before: {line}\n{self.log.read_text()}")
                # A server may still be about to print it.
                time.sleep(0.02)
            self.position = printed.index(line, self.position) + 1

    def printed_lines(self):
        return [VARYING.sub(r"\1N", line.strip()) for line in self.log.read_text().splitlines()]


def is_open(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def run_page(page, target):
    """Runs the snippets of a page that have an entry for it. Returns their number."""
    session, count = Session(page, target), 0
    if prepare := checks.PREPARE.get(page):
        prepare(session)
    for line, _, language, text in snippets(pathlib.Path(page)):
        key = entry_of(page, language, text)
        entry = OTHERS.get(key)
        try:
            match entry:
                case Run():
                    session.run(text)
                case Serve(ports):
                    session.serve(text, ports)
                case Shown():
                    session.expect(text)
                case Bounded(seconds):
                    session.run_bounded(text, seconds)
                case Checked(name):
                    getattr(checks, name)(session, text)
                case _:
                    continue
        except (Failed, subprocess.SubprocessError) as error:
            raise SystemExit(f"{page}:{line}: {error}\nin this snippet:\n{text}")
        count += 1
    session.stop()
    return count


def run_in_namespaces(page, target):
    started = time.monotonic()
    isolated = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    again = [sys.executable, __file__, str(target), "--page", page]
    run = subprocess.run(isolated + again, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"-- {page} ({time.monotonic() - started:.1f} s): {run.stdout.strip()}", flush=True)
    return run.returncode == 0


def main():
    target = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2:3] == ["--page"]:
        enter(target)
        print(run_page(sys.argv[3], target), "snippets")
        return
    chosen = sys.argv[2:] or [
        str(page)
        for page in pages()
        if any(not isinstance(OTHERS.get(entry_of(str(page), language, text), ""), str)
               for _, _, language, text in snippets(page))
    ]
    # Most pages wait for servers to start.
    with ThreadPoolExecutor(3) as runs:
        if not all(list(runs.map(lambda page: run_in_namespaces(page, target), chosen))):
            raise SystemExit(1)


main()
