"""What a viewer would notice in a page: is it drawn, do labels overlap, is the contrast sufficient."""

import json
from typing import Any

from playwright.sync_api import Page

from tests.browser.chromium import wait_until

ROUNDS_DRAWN = "document.body.dataset.ready === 'true' && Number(document.body.dataset.drawn)"

_TEXTS = """
[...document.querySelectorAll(".chart svg")].filter((svg) => svg.checkVisibility()).flatMap((svg, chart) =>
  [...svg.querySelectorAll("text")].map((text) => {
    const box = text.getBoundingClientRect();
    const around = svg.getBoundingClientRect();
    return {chart, text: text.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
            inside: box.left >= around.left - 0.5 && box.right <= around.right + 0.5
                    && box.top >= around.top - 0.5 && box.bottom <= around.bottom + 0.5};
  }))
"""

# WCAG contrast ratios. The background of a text is that of its nearest ancestor which is not transparent.
_CONTRASTS = """
(() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return {rgb: [r, g, b], a};
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const {rgb, a} = parse(getComputedStyle(one).backgroundColor);
      if (a === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility({visibilityProperty: true}) || element.closest(".unseen, option")) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color).rgb;
    const [one, other] = [luminance(ink), luminance(background(element))];
    found.push({text: text.slice(0, 60), ratio: (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)});
  }
  return found;
})()
"""


def open_page(page: Page, url: str, rounds: int) -> None:
    page.goto(url)
    wait_for_rounds(page, rounds)


def wait_for_rounds(page: Page, rounds: int) -> None:
    wait_until(page, f"{ROUNDS_DRAWN} >= {rounds}")


def chart_texts(page: Page) -> list[dict[str, Any]]:
    found = page.evaluate(_TEXTS)
    assert isinstance(found, list)
    return found


def overlapping(texts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of labels in one chart whose boxes overlap by more than a pixel or two."""
    return [
        (one["text"], other["text"])
        for index, one in enumerate(texts)
        for other in texts[index + 1 :]
        if one["chart"] == other["chart"]
        and min(one["right"], other["right"]) - max(one["left"], other["left"]) > 1
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > 2
    ]


def low_contrast_texts(page: Page, least: float = 4.5) -> list[dict[str, Any]]:
    found = page.evaluate(_CONTRASTS)
    assert len(found) > 20
    return [text for text in found if text["ratio"] < least]


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def wider_than_the_window(page: Page) -> list[str]:
    """Elements that extend beyond the window, except those inside a box that scrolls."""
    found = page.evaluate(
        """[...document.querySelectorAll("body *")].filter((element) => element.checkVisibility()
           && !element.closest(".scroll, .table-host, .unseen, .skip, svg")
           && element.getBoundingClientRect().right > innerWidth + 1)
           .map((element) => element.outerHTML.slice(0, 120))"""
    )
    assert isinstance(found, list)
    return found


def count_dots(page: Page, outcome: str) -> int:
    drawn = json.dumps(f"#value-cosine [data-outcome='{outcome}']:not(.unfinished)")
    return int(
        page.evaluate(
            f"""[...document.querySelectorAll({drawn})]
                .reduce((sum, path) => sum + (path.getAttribute("d").match(/M/g) ?? []).length, 0)"""
        )
    )


def count_points(page: Page, panel: str, series: str) -> int:
    """Points of a visible line; 0 if it is not visible."""
    return int(
        page.evaluate(
            f"""(() => {{
              const path = document.querySelector("#{panel} .chart path.curve.{series}");
              if (!path || !path.checkVisibility()) return 0;
              const box = path.getBoundingClientRect();
              const count = (path.getAttribute("d").match(/[ML]/g) ?? []).length;
              return box.width > 20 ? count : 0;
            }})()"""
        )
    )
