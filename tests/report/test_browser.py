"""The page of a report in a real browser: it sorts, shows values, fits a phone, and loads nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import HOSTILE, some_tables

from pe_bench.report.page import to_html

pytestmark = pytest.mark.full
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator:
    if BROWSER is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver here: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "report.html"
    path.write_text(to_html(some_tables(folder), title=HOSTILE), encoding="utf-8")
    return path


@pytest.fixture
def page(browser, file) -> Iterator:
    """Open the page in a wide window. It must log no error and load nothing."""
    use_window(browser, 1280, 900)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(file.as_uri())
    yield browser
    assert browser.get_log("browser") == []
    assert requests_of(browser) == [file.as_uri()]


def requests_of(browser) -> list[str]:
    """Every address asked for: `data:` is in the page itself, `chrome:` is the browser's own start."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    addresses = [request["request"]["url"] for request in sent]
    return [address for address in addresses if not address.startswith(("data:", "chrome:"))]


def use_window(browser, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    # The page hears of its new width with the next frame.
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def heading(browser, text: str):
    headings = browser.find_elements("css selector", "#table-1 .lines > thead th")
    return next(heading for heading in headings if heading.text.split("\n")[0].strip("↕↑↓ ") == text)


def order(browser) -> list[str]:
    names = browser.find_elements("css selector", "#table-1 .name")
    return [name.get_attribute("textContent") for name in names]


def test_a_click_on_a_heading_sorts_its_column_and_a_second_click_reverses_it(page):
    for direction in ("ascending", "descending", "ascending"):
        find(heading(page, "level at 128"), "button").click()
        names = ["rope", "learned", "alibi", "sinusoidal"]
        assert order(page) == (names if direction == "ascending" else names[::-1])
        assert heading(page, "level at 128").get_attribute("aria-sort") == direction
        assert len(page.find_elements("css selector", "#table-1 th[aria-sort]")) == 1


def test_a_line_opens_for_its_details(page):
    button = find(page, "#table-1 .name")
    details = find(page, "#table-1 .details")
    assert not details.is_displayed() and button.get_attribute("aria-expanded") == "false"
    button.click()
    assert details.is_displayed() and button.get_attribute("aria-expanded") == "true"
    assert "±" in details.text and "break point" in details.text
    button.click()
    assert not details.is_displayed()


def test_on_a_phone_how_far_a_model_works_stands_beside_its_name(page):
    script = "return [...document.querySelectorAll('#table-1 .lines > thead th')].map((th) => th.innerText)"
    wide = page.execute_script(script)
    use_window(page, 390, 800)
    narrow = page.execute_script(script)
    assert "works to" in narrow[1] and "works to" not in wide[1]
    use_window(page, 1280, 800)
    assert page.execute_script(script) == wide


@pytest.mark.parametrize("width", [320, 1280])
def test_tables_scroll_sideways_and_the_page_never_does(page, width):
    use_window(page, width, 800)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    script = "const box = arguments[0]; return box.scrollWidth > box.clientWidth"
    assert page.execute_script(script, find(page, "#table-1 .scroll")) or width == 1280


def test_touching_a_point_shows_its_values_inside_a_phones_window(page):
    use_window(page, 375, 800)
    target = find(page, '#table-1 .marker[aria-label^="sinusoidal at 1,024"]')
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
    place = page.execute_script(
        "const b = arguments[0].getBoundingClientRect(); return [b.x + b.width / 2, b.y]", target
    )
    touch = [{"x": place[0], "y": place[1]}]
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": touch})
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    tip = find(page, "#tip")
    assert tip.text.startswith("sinusoidal at 1,024 tokens\nbits/byte 4.300") and "fails" in tip.text
    assert find(page, "#table-1 tbody.on .name").text == "sinusoidal"
    box = tip.rect
    assert box["x"] >= 0 and box["x"] + box["width"] <= 375
