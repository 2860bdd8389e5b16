"""The page as files, in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from browser import NEEDS, Page, duration
from selenium.webdriver.common.by import By

import automap_models as am
from automap_models.planners.base import SILENT
from automap_models.serve import ServeRequest
from automap_models.serve.static import write_static

pytestmark = NEEDS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page in files, on a server that knows nothing of automap."""
    folder = tmp_path_factory.mktemp("static") / "page"
    write_static(ServeRequest(static=folder, models=("gpt2",), clusters=("2xh100",)), SILENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_page_in_files_prices_copies_and_knows_the_best(driver: Any, written: str) -> None:
    page = Page(driver, written)
    page.show("")
    assert "this page has the answers for gpt2 on 2xh100" in page.text("#fixed")
    page.choose("tp", "2")
    assert page.text("#verdict") == f"{duration(am.price('gpt2', gpus='2xh100', tp=2).step_s)} a step fits"
    page.wait(lambda: not page.one("#lane-pp input[value='2']").is_enabled())
    assert page.text("#lane-pp .reason").startswith("not 2: tp × cp × pp are 4 devices, which do not divide the 2")
    assert "--tensor-model-parallel-size 2" in page.copy("megatron")
    assert page.driver.find_elements(By.CSS_SELECTOR, "#timeline canvas")
    page.click("#find")
    page.wait(lambda: "This is the best known." in page.text("#search"))
    best_s = am.plan("gpt2", gpus="2xh100").cost.step_s
    assert page.text("#verdict").startswith(f"{duration(best_s)} a step")
    page.driver.get(f"{written}#tp=4")
    page.wait(lambda: "was not computed for this page" in page.text("#refusal"))
    assert [entry for entry in driver.get_log("browser") if "favicon" not in entry["message"]] == []


def test_every_value_that_a_page_in_files_offers_has_an_answer(driver: Any, written: str) -> None:
    """From the best, whose neighbours are computed; the script and the library call strategies the same."""
    page = Page(driver, written)
    page.show("")
    page.click("#find")
    page.wait(lambda: "best known" in page.text("#search"))
    best = page.driver.current_url.partition("#")[2]
    offers = "#lanes input:enabled:not(:checked)"
    offered = page.wait(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, offers)))
    assert offered > 15
    for number in range(offered):
        page.script("location.hash = arguments[0]", best)
        page.wait(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, offers)) == offered)
        click = "document.querySelectorAll(arguments[0])[arguments[1]].click()"
        page.script(f"delete document.body.dataset.ms; {click}", offers, number)
        page.wait(lambda: page.script("return document.body.dataset.ms") or page.text("#refusal"))
        assert page.text("#refusal") == ""
