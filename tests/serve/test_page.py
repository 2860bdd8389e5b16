"""The page in a browser: what people do on it, by mouse and by keyboard."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from browser import NEEDS, START, Page, duration
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import automap_models as am
from automap_models.serve import ServeRequest
from automap_models.serve.server import address_of, listen, serve

pytestmark = NEEDS


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


def test_who_shares_an_expert_is_asked_beside_tensor_parallelism_of_models_with_experts(page: Page) -> None:
    assert not page.one("#lane-etp").is_displayed()
    page.show("model=mixtral-8x7b&cluster=16xh200&sequence=4096&global_batch=64&tp=2&ep=8&zero=1")
    page.choose("etp", "1")
    options = {"sequence": 4096, "global_batch": 64, "tp": 2, "ep": 8, "zero": 1, "etp": 1}
    price = am.price("mixtral-8x7b", gpus="16xh200", **options)
    assert page.text("#verdict") == f"{duration(price.step_s)} a step {price.verdict}"
    assert page.state["etp"] == "1"
    page.choose("tp", "1")
    page.wait(lambda: not page.one("#lane-etp").is_displayed())
    assert "etp" not in page.state


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
    front = [f"{entry.peak_memory / 1e9:.3g} GB {1e3 * entry.step_s:.3g} ms, fits" for entry in best.compared.memory]
    assert page.one("#front .chart").get_attribute("aria-label") == "; ".join(reversed(front))
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


COPIES = {
    "command": "automap plan llama3-8b --gpus 8xh100 --sequence 4096 --global-batch 64 --tp 2 --pp 2 --price",
    "python": "am.price('llama3-8b', gpus='8xh100'",
    "slurm": "#SBATCH --gpus-per-node=8",
    "skypilot": "accelerators: H100:8",
    "jobset": "kind: JobSet",
    "torch-csv": "0F0",
    "torchtitan": "pipeline_parallel_degree=2",
    "megatron": "--tensor-model-parallel-size 2",
    "megatron-bridge": "tensor_model_parallel_size: 2",
    "deepspeed": "num_pp=2, num_mp=2, num_dp=2",
    "accelerate": "accelerate has no tensor parallelism",
    "galvatron": '"pp_deg": 2',
}
"""Target → what its own format says of tp 2, pp 2 on eight devices."""


def test_the_strategy_is_copied_for_every_target(page: Page) -> None:
    page.show(f"{START}&tp=2&pp=2")
    assert [button.text for button in page.driver.find_elements(By.CSS_SELECTOR, "#targets button")] == [*COPIES]
    for target, words in COPIES.items():
        assert words in page.copy(target)


def test_what_a_framework_has_no_words_for_is_said(page: Page) -> None:
    page.show(f"{START}&zero=1")
    assert "galvatron has no ZeRO-1; take zero 0 or 2 or 3" in page.copy("galvatron")
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
    assert checked[:7] == ["2", "2", "1", "1", "null", "2", "1"]


def test_adapters_are_priced_and_travel_with_the_link(page: Page) -> None:
    page.click("#training summary")
    page.one("[name=lora]").send_keys("16:q,v")
    page.one("[name=quantize] option[value=true]").click()
    page.one("[name=packed]").send_keys("1024")
    fields = {"lora": "16:q,v", "quantize": True, "packed": 1024}
    price = am.price("llama3-8b", gpus="8xh100", sequence=4096, global_batch=64, **fields)
    page.wait(lambda: page.text("#verdict") == f"{duration(price.step_s)} a step {price.verdict}")
    assert {name: page.state[name] for name in fields} == {"lora": "16:q,v", "quantize": "true", "packed": "1024"}
    page.show(page.driver.current_url.partition("#")[2])
    page.wait(lambda: page.text("#verdict") == f"{duration(price.step_s)} a step {price.verdict}")
    assert page.one("[name=quantize]").get_attribute("value") == "true"


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


def test_a_config_json_is_chosen_as_a_file(page: Page, tmp_path: Path) -> None:
    config = tmp_path / "mine.json"
    sizes = {"n_embd": 256, "n_layer": 6, "n_head": 4, "n_positions": 512, "vocab_size": 2048}
    config.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    page.show("model=gpt2&cluster=8xh100&global_batch=64")
    page.click("#config summary")
    page.one("#config [type=file]").send_keys(str(config))
    price = am.price(str(config), gpus="8xh100", global_batch=64)
    page.wait(lambda: page.text("#verdict") == f"{duration(price.step_s)} a step {price.verdict}")
    assert page.one("[name=model]").get_attribute("value") == "mine"


def test_a_profile_is_dropped_as_a_file_and_travels_with_the_link(page: Page) -> None:
    profile = Path(__file__).parents[2] / "examples" / "vgg19_v100.npz"
    page.show("model=gpt2&cluster=A&sequence=512")
    page.click("#config summary")
    page.one("#config [type=file]").send_keys(str(profile))
    price = am.price(str(profile), "A", dp=16)
    verdict = f"{duration(price.step_s)} a step {price.verdict}"
    page.wait(lambda: page.text("#verdict") == verdict)
    assert (page.state["model"], page.state.get("sequence")) == ("vgg19_v100", None)
    assert "SAMPLES/S" in page.text("#numbers").upper()
    page.show(page.driver.current_url.partition("#")[2])
    page.wait(lambda: page.text("#verdict") == verdict)


def test_the_schedule_is_drawn_and_zoomed(page: Page) -> None:
    page.show(f"{START}&pp=4")
    length = page.wait(lambda: page.script(SHOWN))[1]
    assert page.script(FIRST) == [59, 118, 196]
    page.one("#timeline").send_keys("+")
    page.wait(lambda: page.script(SHOWN) == pytest.approx([length / 4, 3 * length / 4]))
    page.one("#timeline").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: page.script(SHOWN) == pytest.approx([length * 0.375, length * 0.875]))
    page.click("[data-zoom=all]")
    page.wait(lambda: page.script(SHOWN) == [0, length])
    over = page.one("#timeline .u-over")
    page.script("arguments[0].scrollIntoView({block: 'center'})", over)
    width, height = over.rect["width"], over.rect["height"]
    mouse = ActionChains(page.driver)
    mouse.move_to_element_with_offset(over, int(3 - width / 2), int(height / 3)).perform()
    page.wait(lambda: page.text("#moment") == "rank 3, idle")
    mouse.move_to_element(over).click_and_hold().move_by_offset(int(width / 4), 0).release().perform()
    page.wait(lambda: page.script(SHOWN) == pytest.approx([length / 2, 3 * length / 4], rel=0.01))


SHOWN = "const c = document.getElementById('timeline').chart; return c && [c.scales.x.min, c.scales.x.max]"
FIRST = """
const {chart} = document.getElementById('timeline');
const [x, y] = [chart.valToPos(0, 'x', true) + 2, chart.valToPos(0, 'y', true)];
return [...chart.ctx.getImageData(x, y, 1, 1).data].slice(0, 3);
"""
"""The colour of what rank 0 begins with."""


def test_steps_of_other_numbers_of_devices_are_drawn_and_listed(page: Page) -> None:
    page.click("#sweep")
    page.wait(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#sizes tbody tr"), 120)
    price = am.price("llama3-8b", gpus="16xh100", sequence=4096, global_batch=64)
    assert f"16 devices {duration(price.step_s)}" in page.one("#sizes .chart").get_attribute("aria-label")
    rows = [row.text for row in page.driver.find_elements(By.CSS_SELECTOR, "#sizes tbody tr")]
    assert f"16 {duration(price.step_s)} {price.verdict}" in rows
    middle = page.one("#sizes .u-over")
    page.script("arguments[0].scrollIntoView({block: 'center'})", middle)
    ActionChains(page.driver).move_to_element(middle).perform()
    legend = page.wait(
        lambda: [v.text for v in page.driver.find_elements(By.CSS_SELECTOR, "#sizes .u-value") if v.text]
    )
    assert any(row.startswith(" ".join(legend[:2])) for row in rows)


@pytest.mark.parametrize(("width", "height"), [(360, 740), (3840, 2160)])
def test_nothing_is_wider_than_the_window(page: Page, width: int, height: int) -> None:
    page.show(f"{START}&pp=4", width, height)
    page.click("#keep")
    assert page.script("return document.documentElement.scrollWidth") <= width
    font = float(page.script("return getComputedStyle(document.body).fontSize").removesuffix("px"))
    assert font >= (15 if width < 1000 else 24)


def test_on_a_phone_the_memory_of_a_rank_stands_beside_its_name(page: Page) -> None:
    """It stood below the bar, beside the name of the next rank."""
    page.show(f"{START}&tp=2&pp=2", 360, 740)
    page.wait(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#memory .number"))
    cells = page.driver.find_elements(By.XPATH, "//*[@id='memory']/*[not(contains(@class, 'key'))]")
    tops = [cell.rect["y"] for cell in cells]
    assert len(tops) == 6
    assert tops[0] == pytest.approx(tops[2], abs=2) and tops[3] == pytest.approx(tops[5], abs=2)
    assert tops[0] < tops[1] < tops[3] < tops[4]


def test_a_program_s_name_is_seen_in_full(page: Page) -> None:
    for width in (360, 1400):
        page.show(START, width)
        wide, room = page.script(
            "const s = document.querySelector('select[name=runtime]');"
            "const c = document.createElement('canvas').getContext('2d');"
            "c.font = getComputedStyle(s).font;"
            "return [c.measureText(s.selectedOptions[0].text).width, s.clientWidth];"
        )
        assert wide + 30 <= room


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


AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then(({violations, passes}) => done({
  passes: passes.map((rule) => rule.id),
  violations: violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.failureSummary} ${node.html}`)),
}));
"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 360)])
def test_the_rules_of_accessibility_are_kept(page: Page, scheme: str, width: int) -> None:
    """WCAG 2.1 and more, as axe-core has it, on the page with everything on it that it can show."""
    axe = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text("utf-8")
    page.show(f"{START}&pp=4&tp=2&layers=8,8,8,8|{START}|{START}&tp=2", width, scheme=scheme)
    page.click("#config summary")
    page.click("#sweep")
    page.copy("command")
    page.wait(lambda: page.one("#sizes").is_displayed() and page.one("#compared").is_displayed(), 120)
    page.script(axe)
    report = page.driver.execute_async_script(AXE)
    assert len(report["passes"]) > 20
    assert report["violations"] == []
