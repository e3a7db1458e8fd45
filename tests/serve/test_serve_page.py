"""The upload page in headless Chromium: a person drops an image and sees the answer with probabilities."""

import pytest

from uploads import png


@pytest.fixture(scope="module")
def page(browser):
    return browser.new_page()


def test_an_image_is_answered(page, address, tmp_path):
    problems: list[str] = []
    page.set_default_timeout(600_000)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.locator("#about", has_text="4-bit").wait_for()
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png(90, 10))
    page.set_input_files("#file", [tmp_path / "a.png", tmp_path / "b.png"])
    page.wait_for_selector("article:nth-of-type(2)")
    text = page.inner_text("#answers")
    assert "a.png" in text and "b.png" in text and "%" in text
    assert "<b>fish</b>" in text and page.query_selector("#answers b") is None  # names are text, never markup
    assert page.query_selector_all("article")[0].query_selector("img").evaluate("e => e.naturalWidth") > 0
    assert not problems
    (tmp_path / "bad.png").write_bytes(b"no image")
    page.set_input_files("#file", tmp_path / "bad.png")
    page.locator("#error", has_text="not an image").wait_for()


def test_dropping_works_and_a_phone_can_show_it(page, address):
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto(address)
    drop = """async () => {
        const canvas = document.createElement('canvas'); canvas.width = canvas.height = 40;
        const blob = await new Promise(done => canvas.toBlob(done));
        const data = new DataTransfer(); data.items.add(new File([blob], 'dropped.png', {type: 'image/png'}));
        document.getElementById('drop').dispatchEvent(new DragEvent('drop', {dataTransfer: data, cancelable: true}));
    }"""
    page.evaluate(drop)
    page.wait_for_selector("article")
    assert "dropped.png" in page.inner_text("article")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
