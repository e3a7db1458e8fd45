"""The axe accessibility rules in a page of Chromium: contrast, names, landmarks, headings, tables, keyboard.

axe-core (MPL-2.0) comes with axe-playwright-python, a dependency of the tests alone; fedqssl ships nothing of it.
"""

from importlib.resources import files

from needed import unavailable

RUN = "axe.run(document, { resultTypes: ['violations'] })"
FOUND_AT_LEAST = 10
"""Rules that any page of ours passes: fewer mean that axe did not see the page."""


def faults(page) -> list[str]:
    """What axe objects to on a page as it is now, with everything unfolded: rule, number of places, the first one."""
    try:
        script = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    except ImportError:
        unavailable("no axe-playwright-python (pip install 'fedqssl[dev]')")
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    page.wait_for_timeout(300)  # fades of tables
    page.evaluate(script)
    found = page.evaluate(RUN)
    assert len(found["passes"]) >= FOUND_AT_LEAST
    return [f"{v['id']} ({len(v['nodes'])}): {v['nodes'][0]['html'][:120]}" for v in found["violations"]]
