"""A headless Chromium, driven over its DevTools protocol: what a person sees, clicks and types."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.projects import wait_for

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0"),
)
WIDTH, HEIGHT = 1500, 1300
# The innermost element that shows just this text, of those that a person can see.
_SHOWN = """const shown = text => [...document.querySelectorAll('body *')].filter(
    e => e.textContent.trim() === text && e.getClientRects().length).pop()"""


class Page:
    """A tab; an element is given as a JavaScript expression, in which ``shown(text)`` is the element that shows a text."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._calls = connection, 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol and its result."""
        self._calls += 1
        self._connection.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(300))
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def value(self, expression: str) -> Any:
        """The value of an expression in the page; true for an element."""
        program = f"(() => {{ {_SHOWN}; const found = {expression}; return found instanceof Element || found }})()"
        found = self.call("Runtime.evaluate", expression=program, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 120) -> Any:
        """The value of an expression as soon as it is true; looked at five times a second, since each look costs the page."""

        def look() -> Any:
            time.sleep(0.2)
            return self.value(expression)

        return wait_for(look, seconds)

    def sees(self, text: str, seconds: float = 120) -> None:
        """Wait until a text is on the page."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def click(self, element: str) -> None:
        """Press the mouse in the middle of an element as soon as it is there and stands still."""
        middle = f"""(e => {{ if (!e) return null; e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2] }})({element})"""
        before = None
        while (place := self.wait(middle)) != before:
            before = place
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def click_text(self, text: str) -> None:
        """Click on what shows just this text."""
        self.click(f"shown({json.dumps(text)})")

    def press(self, key: str, code: int) -> None:
        """Press a key that writes nothing, as ArrowDown."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def write(self, element: str, text: str) -> None:
        """Replace what is in a field, as from the keyboard."""
        self.click(element)
        self.value(f"({element}).select()")
        self.call("Input.insertText", text=text)

    def height(self, height: int = HEIGHT) -> None:
        """Make the window so many pixels high."""
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)

    def shoot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """An empty tab of a browser of its own with the empty folder ``profile``."""
    program = shutil.which("chromium")
    assert program, "the browser tests need Debian's chromium: apt-get install chromium"
    log = open(profile.with_suffix(".log"), "wb")  # noqa: SIM115 - the browser holds it
    browser = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=log, start_new_session=True
    )
    try:
        port = wait_for(lambda: (f := profile / "DevToolsActivePort").exists() and f.read_text().split("\n")[0], 120)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            address = json.loads(answer.read())["webSocketDebuggerUrl"]
        with connect(address, max_size=None) as connection:
            page = Page(connection)
            page.height()
            yield page
    finally:
        os.killpg(browser.pid, signal.SIGTERM)
        browser.wait(30)
        log.close()
