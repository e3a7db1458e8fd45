"""The page in a real browser: every figure is drawn, nothing overflows or overlaps, the console stays clean."""

import shutil

import pytest

from axe import faults
from fedqssl.reporting import write_report
from needed import unavailable

SIZES = {"phone": (390, 844), "desktop": (1440, 900)}
CHECK = """() => {
  const found = [];
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) found.push(`the page is ${wide} px too wide`);
  for (const figure of document.querySelectorAll("[data-figure]")) {
    const name = figure.dataset.figure, svg = figure.querySelector("svg[role=img]");
    if (!svg) { found.push(`${name}: no drawing`); continue; }
    const box = svg.getBoundingClientRect(), card = figure.getBoundingClientRect();
    if (box.width < 200 || box.height < 60) found.push(`${name}: ${box.width} x ${box.height} px`);
    const marks = [...svg.querySelectorAll(".mark, .line")];
    const drawn = marks.filter((m) => { const b = m.getBoundingClientRect(); return b.width > 0 || b.height > 0; });
    if (!drawn.length) found.push(`${name}: nothing drawn`);
    if (!svg.getAttribute("aria-label")) found.push(`${name}: no words for a screen reader`);
    for (const m of marks) {
      const b = m.getBoundingClientRect();
      if (b.left < box.left - 3 || b.right > box.right + 3 || b.top < box.top - 3 || b.bottom > box.bottom + 3)
        found.push(`${name}: a mark is outside`);
    }
    const words = [...svg.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    for (const [t, b] of words) {
      if (b.left < card.left || b.right > card.right || b.bottom > card.bottom) found.push(`${name}: "${t.textContent}" is cut`);
      if (parseFloat(getComputedStyle(t).fontSize) * box.width / 360 < 8.5) found.push(`${name}: text too small`);
    }
    const straight = words.filter(([t]) => !t.hasAttribute("transform") && !t.classList.contains("said"));
    straight.forEach(([t, a], i) => straight.slice(i + 1).forEach(([u, b]) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        found.push(`${name}: "${t.textContent}" and "${u.textContent}" overlap`);
    }));
  }
  return [document.querySelectorAll("[data-figure]").length, [...new Set(found)].slice(0, 20)];
}"""

TRY = """() => {
  const title = document.querySelector("svg .mark > title"), words = title.textContent;
  title.parentElement.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 20, clientY: 200 }));
  const head = document.querySelectorAll("thead th")[1], tip = document.getElementById("tip");
  head.click();
  return [words, tip.hidden ? null : tip.textContent, head.getAttribute("aria-sort")];
}"""


@pytest.fixture(scope="module")
def pages(real, made, tmp_path_factory):
    many = tmp_path_factory.mktemp("many")
    for name, words in {"a": {}, "b": {"seed": 1}, "c": {"algorithm": "fed_simclr", "done": 2}}.items():
        shutil.copytree(made(clients=4, rounds=3, **words), many / name)
    long = [f"the client of a very long name, number {i}" for i in range(12)]
    return {
        "real": write_report(real),
        "ten": write_report(made(clients=10, rounds=30)),
        "hundred": write_report(made(clients=100, rounds=100)),
        "hundred classes": write_report(made(clients=10, rounds=5, classes=100)),
        "going": write_report(made(clients=10, rounds=20, done=1, rank=1.2)),
        "long names": write_report(made(clients=12, rounds=2, names=long)),
        "folder": write_report(many),
    }


NAMES = ["real", "ten", "hundred", "hundred classes", "going", "long names", "folder"]


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_drawn_and_the_console_is_clean(browser, pages, name, size):
    width, height = SIZES[size]
    scheme = "dark" if size == "phone" else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    said, asked = [], []
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(pages[name].as_uri())
    count, problems = page.evaluate(CHECK)
    assert count >= (8 if name == "going" else 9) and problems == []
    told, shown, order = page.evaluate(TRY)
    assert told and shown == told and order == "ascending"
    assert said == [] and asked == [pages[name].as_uri()]
    context.close()


LOOKS = """async () => {
  const found = [];
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  await new Promise((done) => setTimeout(done, 300));
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("[hidden], script, style, title, caption") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), a = light(parse(e instanceof SVGElement ? style.fill : style.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(1)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  for (const box of document.querySelectorAll(".scroll")) {
    const across = box.scrollWidth - box.clientWidth > 1, down = box.scrollHeight - box.clientHeight > 1;
    const list = box.parentElement.classList, words = getComputedStyle(box.nextElementSibling).visibility;
    const name = box.getAttribute("aria-label");
    if (list.contains("right") !== across || list.contains("below") !== down) found.push(`${name}: fades where it should not`);
    if ((words === "visible") !== (across || down)) found.push(`${name}: does not say that it scrolls`);
    if (box.tabIndex !== 0 || !name) found.push("a table cannot be reached with keys");
  }
  const cut = [...document.querySelectorAll(".scroll")].find((box) => box.scrollWidth - box.clientWidth > 1);
  if (cut) {
    cut.scrollLeft = cut.scrollWidth;
    await new Promise((done) => setTimeout(done, 300));
    if (cut.parentElement.classList.contains("right")) found.push("fades at its end");
  }
  for (const img of document.images) {
    const box = img.getBoundingClientRect(), card = img.closest(".card").getBoundingClientRect();
    if (!img.naturalWidth) found.push(`not a picture: ${img.alt}`);
    if (box.width < 30 || box.left < card.left || box.right > card.right) found.push(`cut or tiny: ${img.alt}`);
    if (!img.alt && !img.nextElementSibling?.textContent) found.push("a picture without words");
  }
  if (document.documentElement.scrollWidth > window.innerWidth) found.push("too wide");
  return [document.images.length, !!cut, [...new Set(found)].slice(0, 20)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_pictures_tables_and_contrast(browser, pages, width, scheme):
    for name in ("real", "folder"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(600_000)
        page.goto(pages[name].as_uri())
        images, cut, problems = page.evaluate(LOOKS)
        context.close()
        assert problems == [] and cut and (images > 60) == (name == "real")


def objections(browser, path, width, scheme):
    """What axe says about a page."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.goto(path.as_uri())
    found = faults(page)
    context.close()
    return found


LOOKED_AT = {"real": (400, "dark"), "going": (1280, "dark"), "folder": (1280, "light")}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_nothing(browser, pages, name):
    assert objections(browser, pages[name], *LOOKED_AT[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_anywhere(browser, pages, name, width, scheme):
    assert objections(browser, pages[name], width, scheme) == []


FOCUSED = """() => {
  const e = document.activeElement;
  return e === document.body ? null : [e.tagName, (e.getAttribute("aria-label") || e.textContent).trim().slice(0, 30)].join(" ");
}"""


def test_everything_can_be_done_with_keys(browser, pages):
    page = browser.new_page()
    page.set_default_timeout(600_000)
    page.goto(pages["folder"].as_uri())
    wanted = page.locator("nav a, summary:visible, main a, thead th:visible, .scroll:visible").count()
    seen = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    assert None not in seen and len(set(seen)) > 10
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED) in (None, seen[0])  # all of them were met once
    head = page.locator("thead th").nth(1)
    for key, order in (("Enter", "ascending"), ("Space", "descending")):
        head.press(key)
        assert head.get_attribute("aria-sort") == order
    fold = page.locator("details").first
    fold.locator("summary").press("Enter")
    assert fold.evaluate("e => e.open")
    page.close()


def test_without_chromium_ci_fails_and_others_skip(monkeypatch):
    monkeypatch.delenv("FEDQSSL_CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        unavailable("none")
    monkeypatch.setenv("FEDQSSL_CI", "1")
    with pytest.raises(pytest.fail.Exception):
        unavailable("none")
