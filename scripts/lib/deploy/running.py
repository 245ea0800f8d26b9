"""Runs a server for one check, on free ports."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request

PATIENCE = 30


class Running:
    """A server, started with `command` and `environment`; a context manager that ends it."""

    def __init__(self, command, environment):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        ports = {"TIDEGATE_HTTP": "127.0.0.1:0", "TIDEGATE_ADMIN": "127.0.0.1:0"}
        self.process = subprocess.Popen(
            command, env=kept | ports | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.urls = {}
        for line in self.process.stdout:
            name, _, url = line.strip().partition(" ")
            if name in ("http", "admin"):
                self.urls[name] = url.strip().replace("0.0.0.0", "127.0.0.1")
            if len(self.urls) == 2:
                return
        raise SystemExit(f"it did not start: {self.process.communicate()[1]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def get(self, front, path, body=None, token=None):
        """Returns the status and the text of an answer."""
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.urls[front] + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def check(self, token=None):
        """Returns the status of a check."""
        body = {"attributes": {"client_ip": "192.0.2.1"}}
        return self.get("http", "/v1/check", body, token)[0]

    def until_metric(self, name, least):
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            for line in self.get("admin", "/metrics")[1].splitlines():
                if line.startswith(name + " ") and float(line.split()[-1]) >= least:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{name} never got to {least}")

    def signal(self, number, pid=None):
        os.kill(pid or self.process.pid, number)

    def ended(self):
        """Waits for the server to end by itself and returns its exit code."""
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode
