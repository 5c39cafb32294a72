"""Opens pages of `nemocube report` in headless Chromium, light and dark, wide and narrow, and takes pictures of them.

    python3 -m venv ~/report-env                       # outside this repository
    ~/report-env/bin/pip install -r tools/report/requirements.txt
    ~/report-env/bin/playwright install --with-deps chromium     # or: apt-get install chromium
    ~/report-env/bin/python tools/report/check_page.py RUN/report.html --pictures FOLDER

Ends with exit code 1 when a page writes to the console, asks for anything but itself, is wider than the window, or has
a drawing without role, title or description, text of a drawing that is smaller than 9 pixels or leaves its card, or a table of at most
four columns of text that has to be scrolled sideways.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)
SMALLEST_TEXT = 9

# Faults that a look at the page itself shows.
LOOK = """
(smallest) => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    faults.push(`the page is ${document.documentElement.scrollWidth} pixels wide, the window ${width}`);
  for (const svg of document.querySelectorAll("svg")) {
    const label = svg.querySelector("title")?.textContent ?? "?";
    if (svg.getAttribute("role") !== "img" || !svg.querySelector(":scope > title") || !svg.querySelector(":scope > desc"))
      faults.push(`drawing '${label}': no role, title or description`);
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      const pixels = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (pixels < smallest && !text.classList.contains("box"))
        faults.push(`drawing '${label}': '${text.textContent}' is ${pixels.toFixed(1)} pixels high`);
      const figure = svg.closest("figure")?.getBoundingClientRect() ?? {left: 0, right: width};
      if (box.left < figure.left + 1 || box.right > figure.right - 1)
        faults.push(`drawing '${label}': '${text.textContent}' from ${box.left} to ${box.right} leaves its card`);
    }
    const ticks = [...svg.querySelectorAll("text.tick.x, text.tick.name, text.tick.start")]
      .map(t => [t.getBoundingClientRect(), t.textContent]).sort((a, b) => a[0].left - b[0].left);
    for (let i = 1; i < ticks.length; ++i)
      if (ticks[i][0].left < ticks[i - 1][0].right)
        faults.push(`drawing '${label}': '${ticks[i - 1][1]}' meets '${ticks[i][1]}'`);
  }
  for (const table of document.querySelectorAll("table")) {
    const scroll = table.closest(".scroll");
    const few_texts = table.querySelectorAll("thead th").length <= 4 && !table.querySelector("thead th:not(.text)");
    if (scroll && few_texts && scroll.scrollWidth > scroll.clientWidth)
      faults.push(`table '${table.caption.textContent}' is ${scroll.scrollWidth} pixels wide, its card ${scroll.clientWidth}`);
  }
  return faults;
}
"""


def check(browser, page_file, width, scheme, pictures):
    """The faults of a page in a window of this width; saves a picture of the whole page."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    faults = []
    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    own = page_file.resolve().as_uri()
    page.on("request", lambda request: request.url == own or faults.append(f"asks for {request.url}"))
    page.goto(own)
    faults += page.evaluate(LOOK, SMALLEST_TEXT)
    if pictures:
        page.screenshot(path=pictures / f"{page_file.stem}_{width}_{scheme}.png", full_page=True)
    context.close()
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path, help="pages of nemocube report")
    parser.add_argument("--pictures", type=Path, help="folder for pictures, PAGE_WIDTH_SCHEME.png")
    arguments = parser.parse_args()
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    failed = False
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page_file in arguments.pages:
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    faults = check(browser, page_file, width, scheme, arguments.pictures)
                    print(f"{page_file}, {width} pixels, {scheme}: {'good' if not faults else len(faults)}")
                    for fault in faults:
                        print(f"  {fault}")
                    failed = failed or bool(faults)
        browser.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
