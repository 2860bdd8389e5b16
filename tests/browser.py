"""A browser with the page of automap serve, and what a person does with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
NEEDS = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="neither chromium nor chrome with its driver is here"),
]
"""Marks of tests that have one."""
START = "model=llama3-8b&cluster=8xh100&sequence=4096&global_batch=64"


class Page:
    """The page in a browser, and what a person does with it."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def show(self, state: str = START, width: int = 1400, height: int = 1000, *, scheme: str = "light") -> None:
        """Open a link anew, and wait until all of it is there."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{state}")
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, "#lane-tp input"))

    def wait(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        return WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition())

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return str(self.one(selector).text)

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def choose(self, field: str, value: str) -> None:
        """Click on a value, whose price is there when this returns."""
        words = self.text("#words")
        self.one(f"#lane-{field} input[value='{value}']").find_element(By.XPATH, "..").click()
        self.wait(lambda: self.text("#words") != words)

    def copy(self, target: str) -> str:
        """What is copied for a target, or why it cannot be."""
        self.script("document.getElementById('notes').textContent = ''")
        self.script(
            f"[...document.querySelectorAll('#targets button')].find((b) => b.textContent === '{target}').click()"
        )
        self.wait(lambda: self.text("#notes"))
        return self.text("#copied") + self.text("#notes")

    def click(self, selector: str) -> None:
        button = self.one(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    @property
    def state(self) -> dict[str, str]:
        """What the address holds."""
        fragment = self.driver.current_url.partition("#")[2].partition("|")[0]
        return {name: values[0] for name, values in parse_qs(fragment).items()}


def duration(step_s: float) -> str:
    """A time as the page has it."""
    return f"{step_s:.3g} s" if step_s >= 1 else f"{1e3 * step_s:.3g} ms"


def started() -> Any:
    """A browser without a window, which its user ends."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
