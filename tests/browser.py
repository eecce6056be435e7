"""A headless Chromium, spoken to in its own protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Browser:
    """A page in a browser of its own; what goes wrong in it is gathered in `problems`."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.out = os.pipe()
        self.input, theirs_out = os.pipe()
        command = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', CHROMIUM, *FLAGS]
        command.append(f"--user-data-dir={self.folder.name}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.count, self.buffer, self.session, self.problems, self.events = 0, b"", None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.input)
        os.close(self.out)
        self.folder.cleanup()

    def call(self, method, **params):
        """Return what a method of the protocol answers."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self.buffer:
            part = os.read(self.input, 2**16)
            assert part, "the browser has gone"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(message)
        kind, params = message.get("method"), message.get("params", {})
        self.events.append(kind)
        complaint = kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning")
        if complaint or kind in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(params)
        elif kind == "Network.requestWillBeSent" and params["request"]["url"].startswith("http"):
            self.problems.append(params["request"]["url"])
        return message

    def show(self, address, width, height=800, scheme="light"):
        """Open a page at a size and in a colour scheme."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in self.events:
            self._next()

    def evaluate(self, expression):
        """Return the value of an expression of JavaScript."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def point(self, x, y):
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path):
        """Save the whole page as a PNG file."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))
