"""The upload page in headless Chromium: a person drops an image and sees the answer with probabilities."""

import pytest

from axe import faults
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
    page.locator("#about", has_text="in 4 bits").wait_for()
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


def test_many_images_are_sent_in_batches(page, address, tmp_path):
    """The service takes 32 in a request; who drops forty gets forty answers, in order."""
    paths = [tmp_path / f"{i:02d}.png" for i in range(40)]
    for path in paths:
        path.write_bytes(png(8, 8))
    page.set_default_timeout(600_000)
    page.goto(address)
    page.set_input_files("#file", paths)
    page.wait_for_selector("article:nth-of-type(40)")
    assert [e.inner_text() for e in page.locator(".file").all()] == [path.name for path in paths]
    assert page.inner_text("#error") == ""


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


BARS = """() => [...document.querySelectorAll(".row")].map((row) => {
  const [name, bar, share] = row.children, cut = name.scrollWidth > name.clientWidth + 1;
  return [cut, row.clientWidth - name.offsetWidth - share.offsetWidth, share.getBoundingClientRect().right <= innerWidth];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_bars_are_readable_and_axe_finds_nothing(browser, address, tmp_path, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.goto(address)
    for name, data in {"first.png": png(), "bad.png": b"no image", "last.png": png(90, 10)}.items():
        (tmp_path / name).write_bytes(data)
    page.set_input_files("#file", [tmp_path / name for name in ("first.png", "bad.png", "last.png")])
    page.wait_for_selector("article:nth-of-type(3)")
    assert [e.inner_text() for e in page.locator(".file").all()] == ["first.png", "bad.png", "last.png"]  # as sent
    bars = page.evaluate(BARS)
    assert len(bars) == 6 and all(not cut and room > 90 and inside for cut, room, inside in bars)
    assert page.locator("article img").count() == 2 and "not an image" in page.inner_text("article .bad")
    assert faults(page) == []
    page.goto(f"{address}/docs")
    assert faults(page) == []
    context.close()


def test_the_page_says_which_classes_have_no_labels(browser, address):
    page = browser.new_page()
    card = {"data": {"labels by class": [3, 0, 5]}}
    model = {"model": "small_cnn", "bits": 4, "client": "phone", "class_names": ["cat", "dog", "fish"], "card": card}
    page.route("**/model", lambda route: route.fulfill(json=model))
    page.goto(address)
    page.locator("#about", has_text="2 of 3 classes: cat, fish. It has seen no example of dog").wait_for()
    page.close()
