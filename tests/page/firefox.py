"""Firefox for Selenium without geckodriver, which only passes commands on: to Marionette, which is part of Firefox."""

import contextlib
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.remote.file_detector import UselessFileDetector
from selenium.webdriver.remote.remote_connection import RemoteConnection

SECONDS = 30  # until Firefox listens
# Commands whose names differ from Selenium's by more than a capital letter.
NAMES = {
    "get": "Navigate",
    "clickElement": "ElementClick",
    "sendKeysToElement": "ElementSendKeys",
    "clearElement": "ElementClear",
    "getElementValueOfCssProperty": "GetElementCSSValue",
    "getElementAriaLabel": "GetComputedLabel",
    "getCurrentUrl": "GetCurrentURL",
    "w3cExecuteScript": "ExecuteScript",
    "w3cExecuteScriptAsync": "ExecuteAsyncScript",
    "actions": "PerformActions",
    "clearActionState": "ReleaseActions",
    "screenshot": "TakeScreenshot",
}
PREFERENCES = {
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "browser.newtabpage.enabled": False,
    "app.normandy.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}
# Runs a script as one of the page, which sees the page's constants: Marionette's own sandbox does not.
IN_PAGE = """
const element = document.createElement("script");
window.calledWith = arguments;
element.textContent = `window.answered = (function () { ${SCRIPT} }).apply(null, window.calledWith)`;
document.documentElement.append(element);
element.remove();
return window.answered;
"""
# Errors of scripts and of the network, and addresses that pages asked for, since the last time.
WATCH = """
if (!globalThis.watched) {
  globalThis.watched = [];
  Services.obs.addObserver((channel) => watched.push(channel.QueryInterface(Ci.nsIHttpChannel).URI.spec),
                           "http-on-modify-request");
}
const errors = Services.console.getMessageArray().filter((message) => {
  if (!(message instanceof Ci.nsIScriptError)) return false;
  return /^(file|data|blob|about:srcdoc)/.test(message.sourceName);
}).map(String);
Services.console.reset();
return { errors, requests: watched.splice(0) };
"""


class Marionette(RemoteConnection):
    """Selenium's connection to a browser, over Marionette's socket: length, colon, JSON."""

    def __init__(self, port: int):
        super().__init__(client_config=ClientConfig(f"http://127.0.0.1:{port}"))
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.received = b""
        self.sent = 0
        self.receive()  # its greeting

    def receive(self) -> Any:
        """Returns the next message of Firefox."""
        while True:
            length, colon, rest = self.received.partition(b":")
            if colon and len(rest) >= int(length):
                self.received = rest[int(length) :]
                return json.loads(rest[: int(length)])
            part = self.socket.recv(2**20)
            if not part:
                raise ConnectionError("Firefox has closed the connection")
            self.received += part

    def call(self, name: str, parameters: dict) -> tuple[dict | None, Any]:
        """Returns the error and the result of one of Marionette's commands."""
        self.sent += 1
        message = json.dumps([0, self.sent, name, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, number, error, result = self.receive()
        assert number == self.sent
        return error, result

    def execute(self, command: str, params: dict) -> dict:
        parameters = {key: value for key, value in params.items() if key != "sessionId"}
        if command.startswith("w3cExecuteScript"):
            parameters["script"] = f"const SCRIPT = {json.dumps(parameters['script'])};" + IN_PAGE
        if command == "newSession":
            parameters = {}
        if command == "switchToFrame":
            frame = parameters["id"]
            parameters = {"element": next(iter(frame.values()))} if isinstance(frame, dict) else {"id": frame}
        name = NAMES.get(command, command[0].upper() + command[1:])
        error, result = self.call(f"WebDriver:{name}", parameters)
        if error:
            return {"status": 500, "value": json.dumps({"value": error})}
        return {"value": result["value"] if isinstance(result, dict) and "value" in result else result}


class Firefox(webdriver.Remote):
    """A Firefox without a window."""

    def __init__(self, binary: str, profile: Path):
        lines = [f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in PREFERENCES.items()]
        port = free_port()
        (profile / "user.js").write_text("".join([*lines, f'user_pref("marionette.port", {port});\n']))
        flags = "--marionette --headless --no-remote --remote-allow-system-access --width=1280 --height=900"
        self.process = subprocess.Popen(
            [binary, *flags.split(), "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(profile), "PATH": "/usr/bin:/bin"},
        )
        super().__init__(connected(port), options=webdriver.FirefoxOptions(), file_detector=UselessFileDetector())
        self.watched()

    def watched(self) -> dict[str, list[str]]:
        """Returns `errors` that pages made and `requests` over the network, since the last call."""
        self.command_executor.call("Marionette:SetContext", {"value": "chrome"})
        try:
            _, result = self.command_executor.call("WebDriver:ExecuteScript", {"script": WATCH, "args": []})
            return result["value"]
        finally:
            self.command_executor.call("Marionette:SetContext", {"value": "content"})

    def quit(self) -> None:
        self.command_executor.call("Marionette:Quit", {"flags": ["eForceQuit"]})
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def connected(port: int) -> Marionette:
    """Returns a connection, once Firefox listens."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError):
            return Marionette(port)
        time.sleep(0.1)
    raise TimeoutError(f"Firefox does not listen after {SECONDS} s")
