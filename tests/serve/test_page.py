"""The page in a browser: what people do on it, by mouse and by keyboard."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

import automap_models as am
from automap_models.serve import ServeRequest
from automap_models.serve.server import address_of, listen, serve

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="neither chromium nor chrome with its driver is here"),
]
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

    def click(self, selector: str) -> None:
        button = self.one(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    @property
    def state(self) -> dict[str, str]:
        """What the address holds."""
        fragment = self.driver.current_url.partition("#")[2].partition("|")[0]
        return {name: values[0] for name, values in parse_qs(fragment).items()}


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address() -> str:
    request = ServeRequest(port=0)
    listener = listen(request)
    threading.Thread(target=serve, args=(request, listener), daemon=True).start()
    return address_of(request, listener)


@pytest.fixture
def page(driver: Any, address: str) -> Iterator[Page]:
    page = Page(driver, address)
    page.show()
    driver.get_log("browser")
    yield page
    refused = [entry for entry in driver.get_log("browser") if "422" not in entry["message"]]
    assert refused == []


def test_a_value_that_is_chosen_is_priced(page: Page) -> None:
    page.choose("tp", "4")
    price = am.price("llama3-8b", gpus="8xh100", sequence=4096, global_batch=64, tp=4)
    assert page.text("#verdict") == f"{price.step_s:.3g} s a step {price.verdict}"
    assert page.text("#words").startswith("tp 4, dp 2, 32 micro-batches of 1 sample")
    assert page.text("#memory .number") == f"{price.peak_memory / 1e9:.3g} GB"
    assert page.state["tp"] == "4"


def test_what_contradicts_is_greyed_out_with_its_reason(page: Page) -> None:
    page.choose("tp", "4")
    page.wait(lambda: not page.one("#lane-pp input[value='4']").is_enabled())
    assert page.text("#lane-pp .reason").startswith("not 4: tp × cp × pp are 16 devices, which do not divide the 8")
    assert page.one("#lane-pp").get_attribute("aria-describedby") == page.one("#lane-pp .reason").get_attribute("id")
    page.choose("tp", "1")
    page.wait(lambda: page.one("#lane-pp input[value='4']").is_enabled())


def test_a_link_that_contradicts_itself_says_so_and_can_be_mended(page: Page) -> None:
    page.show(f"{START}&tp=8&pp=2")
    page.wait(lambda: "tp × cp × pp are 16 devices" in page.text("#refusal"))
    page.one("#lane-tp input[value='4']").find_element(By.XPATH, "..").click()
    page.wait(lambda: not page.one("#refusal").is_displayed())
    assert page.text("#words").startswith("tp 4, pp 2")


def test_a_wrong_input_is_told_beside_its_field(page: Page) -> None:
    page.one("[name=sequence]").send_keys("x")
    page.wait(lambda: "sequence" in page.text("#refusal"))
    assert "wrong" in page.one("label:has([name=sequence])").get_attribute("class")


def test_the_best_fills_the_fields_and_the_choice_is_held_against_it(page: Page) -> None:
    page.show("model=gpt2&cluster=8xh100&global_batch=64")
    page.click("#find")
    page.wait(lambda: "best known" in page.text("#search"), 300)
    best = am.plan("gpt2", gpus="8xh100", global_batch=64)
    assert page.text("#verdict").startswith(f"{1e3 * best.cost.step_s:.3g} ms a step")
    assert page.text("#search").startswith("This is the best known.\nIt is proven that no strategy is shorter than")
    page.choose("recompute", '"full"')
    longer = am.price("gpt2", gpus="8xh100", strategy=best.plan, recompute="full").step_s / best.cost.step_s - 1
    page.wait(lambda: f"takes {100 * longer:.3g} % longer than the best known" in page.text("#search"))
    page.click("#search button")
    page.wait(lambda: "This is the best known." in page.text("#search"))


def test_four_strategies_stand_side_by_side(page: Page) -> None:
    for tp in ("2", "4", "8", "1"):
        page.choose("tp", tp)
        page.click("#keep")
    assert not page.one("#keep").is_enabled()
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#compared thead th")) == 4
    page.show(page.driver.current_url.partition("#")[2])
    page.wait(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#compared thead th")) == 4)
    page.click("[aria-label='Take 2']")
    page.wait(lambda: page.text("#words").startswith("tp 4"))
    page.click("[aria-label='Remove 1']")
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#compared thead th")) == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("command", "automap plan llama3-8b --gpus 8xh100 --sequence 4096 --global-batch 64 --tp 2 --pp 2 --price"),
        ("python", "am.price('llama3-8b', gpus='8xh100'"),
        ("slurm", "#SBATCH --gpus-per-node=8"),
        ("torchtitan", "pipeline_parallel_degree=2"),
        ("megatron", "--tensor-model-parallel-size 2"),
        ("deepspeed", "num_pp=2, num_mp=2, num_dp=2"),
        ("galvatron", '"pp_deg": 2'),
    ],
)
def test_the_strategy_is_copied(page: Page, target: str, words: str) -> None:
    page.show(f"{START}&tp=2&pp=2")
    for button in page.driver.find_elements(By.CSS_SELECTOR, "#targets button"):
        if button.text == target:
            page.script("arguments[0].click()", button)
    page.wait(lambda: words in page.text("#copied") + page.text("#notes"))


def test_what_a_framework_has_no_words_for_is_said(page: Page) -> None:
    page.show(f"{START}&zero=1")
    page.script("[...document.querySelectorAll('#targets button')].find((b) => b.textContent === 'galvatron').click()")
    page.wait(lambda: "galvatron has no ZeRO-1; take zero 0 or 2 or 3" in page.text("#notes"))
    assert not page.one("#copied").is_displayed()


def test_a_link_is_the_same_page(page: Page) -> None:
    state = f"{START}&tp=2&pp=2&vp=2&zero=1&recompute=selective&sequence_parallel=true&precision=fp8&runtime=megatron"
    page.show(state)
    page.wait(lambda: page.text("#words").startswith("tp 2, dp 2, pp 2, vp 2"))
    words, link = page.text("#words"), page.driver.current_url.partition("#")[2]
    assert {**parse_qs(link)} == {**parse_qs(state)}
    assert page.one("[name=runtime]").get_attribute("value") == "megatron"
    page.show(link)
    page.wait(lambda: page.text("#words") == words)
    checked = page.script("return [...document.querySelectorAll('#lanes :checked')].map((input) => input.value)")
    assert checked[:6] == ["2", "2", "1", "1", "2", "1"]


def test_a_config_json_is_pasted_and_travels_with_the_link(page: Page) -> None:
    config = '{"model_type": "gpt2", "n_embd": 256, "n_layer": 6, "n_head": 4, "n_positions": 512, "vocab_size": 2048}'
    page.click("#config summary")
    page.one("[name=config]").send_keys(config)
    page.one("[name=sequence]").send_keys(Keys.CONTROL, "a", Keys.NULL, "512")
    page.wait(lambda: page.state.get("sequence") == "512")
    page.wait(lambda: "ms a step" in page.text("#verdict"))
    assert page.state["config"] == config
    page.show(page.driver.current_url.partition("#")[2])
    page.wait(lambda: "ms a step" in page.text("#verdict"))


def test_the_schedule_is_drawn_and_zoomed(page: Page) -> None:
    page.show(f"{START}&pp=4")
    box = page.wait(lambda: page.one("#timeline").get_dom_attribute("viewBox"))
    assert page.driver.find_elements(By.CSS_SELECTOR, "#timeline path.k0")
    page.one("#timeline").send_keys("+")
    width = float(box.split()[2])
    assert float(page.one("#timeline").get_dom_attribute("viewBox").split()[2]) == pytest.approx(width / 2)
    page.one("#timeline").send_keys(Keys.ARROW_RIGHT)
    assert float(page.one("#timeline").get_dom_attribute("viewBox").split()[0]) == pytest.approx(width * 0.375)
    page.click("[data-zoom=all]")
    assert page.one("#timeline").get_dom_attribute("viewBox") == box


def test_steps_of_other_numbers_of_devices_are_drawn(page: Page) -> None:
    page.click("#sweep")
    plot = page.wait(lambda: page.one("#sizes svg"), 120)
    expected = am.price("llama3-8b", gpus="16xh100", sequence=4096, global_batch=64).step_s
    assert f"16 devices {expected:.3g} s" in plot.get_attribute("aria-label")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (3840, 2160)])
def test_nothing_is_wider_than_the_window(page: Page, width: int, height: int) -> None:
    page.show(f"{START}&pp=4", width, height)
    page.click("#keep")
    assert page.script("return document.documentElement.scrollWidth") <= width
    font = float(page.script("return getComputedStyle(document.body).fontSize").removesuffix("px"))
    assert font >= (15 if width < 1000 else 24)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_the_page(page: Page, scheme: str) -> None:
    """Contrast of text on its background by WCAG 2.1: 4.5 and more; of values that cannot be taken it asks for none."""
    page.show(f"{START}&pp=4", scheme=scheme)
    contrasts = page.script(CONTRASTS)
    assert len(contrasts) > 40
    assert [text for text, ratio in contrasts if ratio < 4.5] == []
    dark = page.script("return getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 24, 28)"
    assert dark == (scheme == "dark")


CONTRASTS = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(rgb[i] / 255), 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = channels(getComputedStyle(node).backgroundColor);
    if (colour[3] !== 0) return colour;
  }
};
return [...document.querySelectorAll('label, p, span, button, dt, dd, legend, small, h1, h2, summary')]
  .filter((node) => node.offsetParent && node.textContent.trim() && !node.querySelector(':disabled'))
  .map((node) => {
    const [a, b] = [luminance(channels(getComputedStyle(node).color)), luminance(behind(node))];
    return [node.textContent.trim(), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
"""


def test_it_is_used_by_keyboard_alone(page: Page) -> None:
    """Tab reaches every field once, arrows change a value, Enter presses a button."""
    stops = []
    for _ in range(60):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        node = page.script("const a = document.activeElement; return a.name || a.id || a.textContent.trim()")
        if node in stops:
            break
        stops.append(node)
        if node == "lane-tp":
            page.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
            page.wait(lambda: page.text("#words").startswith("tp 2"))
        if node == "keep":
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert stops[0] == "Skip to the price"
    lanes = [stop for stop in stops if stop.startswith("lane-")]
    assert lanes == [f"lane-{name}" for name in FIELDS]
    assert {"model", "cluster", "find", "keep", "sweep", "link", "timeline", "command"} <= {*stops}
    assert page.one("#compared").is_displayed()


FIELDS = (
    "tp",
    "pp",
    "cp",
    "vp",
    "micro_batch",
    "schedule",
    "recompute",
    "zero",
    "sequence_parallel",
    "offload",
    "precision",
)


def test_everything_that_one_can_use_has_a_name(page: Page) -> None:
    """What a screen reader says, as the browser's tree of accessibility has it."""
    page.driver.execute_cdp_cmd("Accessibility.enable", {})
    tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = ("button", "textbox", "combobox", "radio", "radiogroup", "group", "img", "image", "link", "region", "form")
    named = [node for node in tree if not node["ignored"] and node["role"]["value"] in roles]
    assert len(named) > 70
    assert [node["role"]["value"] for node in named if not node.get("name", {}).get("value")] == []
    headings = [node["name"]["value"] for node in tree if node.get("role", {}).get("value") == "heading"]
    assert headings[0] == "automap"
