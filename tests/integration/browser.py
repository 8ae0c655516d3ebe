# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# browser.py: a headless Chromium, driven over a pipe by its DevTools protocol.
import base64
import json
import os
import select
import subprocess
import time

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
        "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    def __init__(self, program, folder, seconds, size="1400,1000"):
        """seconds: the most that anything may take."""
        command, reply = os.pipe(), os.pipe()
        self.seconds, self.number, self.rest = seconds, 0, b""
        self.complaints = []  # errors of the page and warnings of the browser
        self.addresses = set()  # that it asked for
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", "--hide-scrollbars", "--force-device-scale-factor=1",
             "--user-data-dir=" + folder, "--window-size=" + size, "about:blank"],
            env={**os.environ, "HOME": folder}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, pass_fds=(3, 4), preexec_fn=lambda: self.place(command[0], reply[1]))
        os.close(command[0])
        os.close(reply[1])
        self.to, self.answers, self.session = command[1], reply[0], None
        page = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"][0]
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    @staticmethod
    def place(reads, writes):
        reads, writes = os.dup(reads), os.dup(writes)
        while reads in (3, 4):
            reads = os.dup(reads)
        while writes in (3, 4):
            writes = os.dup(writes)
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        until = time.monotonic() + self.seconds
        while True:
            answer = self.next(until)
            if answer is None:
                raise TimeoutError(f"{method}: no answer in {self.seconds} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def next(self, until):
        """The next message; None: there is none in time."""
        while b"\0" not in self.rest:
            if not select.select([self.answers], [], [], max(0, until - time.monotonic()))[0]:
                return None
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.rest += part
        one, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(one)
        self.hear(message.get("method"), message.get("params", {}))
        return message

    def hear(self, method, event):
        if method == "Network.requestWillBeSent":
            self.addresses.add(event["request"]["url"])
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        if method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value", a.get("description")) for a in event["args"]]))

    def open(self, address):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def value(self, script):
        """What a script gives, promises awaited, as JSON has it."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script[:200]}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def until(self, script):
        end = time.monotonic() + self.seconds
        while not self.value(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not in {self.seconds} s: {script[:200]}")
            time.sleep(0.02)

    def press(self, key, shift=False):
        event = {"key": key, "code": key if len(key) > 1 else "", "windowsVirtualKeyCode": KEYS.get(key, ord(key[0])),
                 "modifiers": 8 if shift else 0}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (RuntimeError, TimeoutError, BrokenPipeError):
            self.process.kill()
        self.process.wait(20)
