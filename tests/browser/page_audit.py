"""Accessibility checks of a page: for screen readers, keyboard use, phones and low vision.

The checks use the state in the browser, not the HTML that was sent: names, headings, labels, and the contrast of every
text with its background (WCAG 2.2 AA: 1.4.3, 1.4.10, 2.4.7, 2.5.8).
"""

from __future__ import annotations

from headless import DESKTOP, NARROW, PHONE, Tab

CONTRAST_MIN, CONTRAST_MIN_LARGE = 4.5, 3.0
TARGET_PX = 24  # WCAG 2.5.8

_TOOLS = r"""
const seen = (e) => {
  const box = e.getBoundingClientRect();  // what is in closed details has one, and is not visible
  return e.checkVisibility({checkVisibilityCSS: true}) && box.width > 0 && box.height > 0;
};
const said = (e) => e.outerHTML.slice(0, 120);
const text = (e) => (e?.textContent ?? "").trim();
const name = (e) => {
  const by = e.getAttribute("aria-labelledby");
  if (by) return by.split(/\s+/).map((id) => text(document.getElementById(id))).join(" ").trim();
  return (e.getAttribute("aria-label") ?? "").trim() || [...(e.labels ?? [])].map(text).join(" ").trim()
    || e.getAttribute("alt")?.trim() || text(e.querySelector(":scope > title")) || text(e)
    || (e.getAttribute("title") ?? "").trim();
};
const CONTROLS = "input:not([type=hidden]), select, textarea, output, meter, progress";
const STOPS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
const stops = () => [...document.querySelectorAll(STOPS)].filter((e) => e.tabIndex >= 0 && !e.disabled && seen(e)
  && !(e.type === "radio" && !e.checked && document.querySelector(`input[name="${e.name}"]:checked`)));
"""

_STRUCTURE = (
    "(() => {"
    + _TOOLS
    + r"""
const found = [], bad = (what, e) => found.push(e ? `${what}: ${said(e)}` : what);
const all = (selector) => [...document.querySelectorAll(selector)];
if (!document.documentElement.lang) bad("no language");
if (!document.title.trim()) bad("no title");
const viewport = document.querySelector("meta[name=viewport]")?.content ?? "";
if (!viewport.includes("width=device-width") || /user-scalable\s*=\s*no|maximum-scale/.test(viewport))
  bad("the viewport is not the device's, or cannot be enlarged");
for (const [selector, count] of [["h1", 1], ["main", 1], ["body > header", 1]])
  if (all(selector).length !== count) bad(`${selector}: ${all(selector).length} times`);
let level = 0;
for (const e of all("h1, h2, h3, h4, h5, h6").filter(seen)) {
  const next = Number(e.tagName[1]);
  if (next > level + 1) bad(`a heading of level ${next} after ${level}`, e);
  if (!text(e)) bad("an empty heading", e);
  level = next;
}
const ids = all("[id]").map((e) => e.id);
for (const id of new Set(ids.filter((each, at) => ids.indexOf(each) !== at))) bad(`id twice: ${id}`);
for (const e of all(CONTROLS)) if (!name(e)) bad("a control without a label", e);
for (const e of all("a[href], button, summary, [role=button]")) if (!name(e)) bad("a link or button without a name", e);
for (const e of all("img, svg, canvas, [role=img]"))
  if (e.getAttribute("aria-hidden") !== "true" && e.getAttribute("alt") !== ""
      && (!name(e) || (e.tagName !== "IMG" && e.getAttribute("role") !== "img"))) bad("a picture without a name", e);
for (const e of all("table")) {
  if (!text(e.caption) && !e.getAttribute("aria-label")) bad("a table without a caption", e);
  if (!e.querySelector("th[scope=col]")) bad("a table without headings", e);
}
for (const e of all("th")) if (!e.getAttribute("scope")) bad("a heading of a table without scope", e);
for (const kind of ["nav", "[role=region]", "section[aria-label], section[aria-labelledby]"]) {
  const names = all(kind).map((e) => e.getAttribute("aria-label") ?? name(e));
  for (const e of all(kind)) if (!(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")))
    bad("a region without a name", e);
  if (new Set(names).size !== names.length) bad(`regions of the same name: ${names}`);
}
for (const e of all("[tabindex]")) if (e.tabIndex > 0) bad("an order of its own for the tab key", e);
for (const e of all("[autofocus]")) bad("takes the focus by itself", e);
for (const e of all("[aria-labelledby], [aria-describedby], [aria-controls], label[for]"))
  for (const each of ["aria-labelledby", "aria-describedby", "aria-controls", "for"])
    for (const id of (e.getAttribute(each) ?? "").split(/\s+/).filter(Boolean))
      if (!document.getElementById(id)) bad(`${each} names nothing: ${id}`, e);
for (const e of all("ul > *, ol > *")) if (e.tagName !== "LI") bad("in a list and no item", e);
if (all("a[href]")[0]?.getAttribute("href") !== "#content" || !document.getElementById("content"))
  bad("the first link does not skip to the content");
return found;
})()"""
)

_CONTRAST = (
    "([min, minLarge]) => {"
    + _TOOLS
    + r"""
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const colour = (css) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = css;
  canvas.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
};
const over = (top, under) => [0, 1, 2].map((at) => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
const ground = (e) => {
  const layers = [];
  for (let at = e; at; at = at.parentElement) {
    const style = getComputedStyle(at);
    if (style.backgroundImage !== "none") return null;
    layers.push(colour(style.backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), colour("Canvas"));
};
const light = ([red, green, blue]) => {
  const [r, g, b] = [red, green, blue].map((each) => each / 255)
    .map((each) => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const e = node.parentElement;
  if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE"].includes(e.tagName) || !seen(e)) continue;
  const style = getComputedStyle(e), under = ground(e);
  if (under === null) { found.add(`text on a picture: ${said(e)}`); continue; }
  const ink = over(colour(e.closest("svg") ? style.fill : style.color), under);
  const [low, high] = [light(ink), light(under)].sort((one, other) => one - other);
  const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
  const isPicture = e.closest("[aria-hidden=true]") !== null;  // 1.4.11
  const isLarge = isPicture || size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? minLarge : min)) found.add(`contrast ${ratio.toFixed(2)}: ${said(e)}`);
}
return [...found];
}"""
)

_FITS = (
    "(least) => {"
    + _TOOLS
    + r"""
const found = [], root = document.documentElement;
if (root.scrollWidth > root.clientWidth) {
  const wide = [...document.querySelectorAll("body *")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.right > root.clientWidth + 0.5 && box.left < root.clientWidth;
  });
  found.push(`scrolls sideways by ${root.scrollWidth - root.clientWidth} px, because of ${wide.slice(0, 3).map(said)}`);
}
const scrolls = (e) => e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
for (const e of document.querySelectorAll("body *"))
  if (seen(e) && scrolls(e) && !e.hasAttribute("tabindex") && !e.matches("input, textarea, select"))
    found.push(`can be scrolled with a pointer alone: ${said(e)}`);
for (const e of document.querySelectorAll("dd, td, th"))
  if (seen(e) && /^[0-9.,]+$/.test(text(e)) && e.getClientRects()[0].height > 60 && e.tagName === "DD")
    found.push(`a number broken over lines: ${said(e)}`);
for (const e of document.querySelectorAll("caption span, figcaption, h1, h2, summary, dt, dd")) {
  const box = e.getBoundingClientRect();
  if (seen(e) && (box.right > innerWidth + 0.5 || box.left < -0.5)) found.push(`reaches beyond the screen: ${said(e)}`);
}
for (const e of document.querySelectorAll("svg text")) {
  if (!seen(e)) continue;
  const px = parseFloat(getComputedStyle(e).fontSize) * Math.abs(e.getScreenCTM().a);
  if (px < 10) found.push(`letters of ${px.toFixed(1)} px: ${said(e)}`);
}
const small = stops().filter((e) => e.matches("a[href], button, input, select, summary, textarea"))
  .filter((e) => !e.classList.contains("skip")).map((e) => [e, e.getBoundingClientRect()]);
const near = (x, y, box) => Math.hypot(
  Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
for (const [e, box] of small) {
  if (box.width >= least && box.height >= least) continue;
  const around = e.closest("p, dd, li, .trouble");
  if (getComputedStyle(e).display === "inline" && around && text(around) !== text(e)) continue;  // within a sentence
  const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
  for (const [other, its] of small) {
    const isSmall = its.width < least || its.height < least;
    const far = isSmall ? Math.hypot(x - (its.left + its.right) / 2, y - (its.top + its.bottom) / 2) >= least
      : near(x, y, its) >= least / 2;
    if (other !== e && !far) found.push(`too small and too near to another for a finger: ${said(e)} ${said(other)}`);
  }
}
return found;
}"""
)

_HERE = (
    "(() => {"
    + _TOOLS
    + r"""
const e = document.activeElement;
if (!e || e === document.body) return null;
const style = getComputedStyle(e), box = e.getBoundingClientRect();
return {
  at: stops().indexOf(e), said: said(e),
  ring: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
  isShown: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
};
})()"""
)


def problems(tab: Tab) -> list[str]:
    """Problems of the open page: its structure, then each theme and width."""
    found = list(tab.js(_STRUCTURE))
    for theme in ("dark", "light"):
        tab.theme(theme)
        found += [f"{theme}: {each}" for each in tab.js(_CONTRAST, [CONTRAST_MIN, CONTRAST_MIN_LARGE])]
    for size in (NARROW, PHONE, DESKTOP):
        tab.resize(size)
        found += [f"at {size[0]} px: {each}" for each in tab.js(_FITS, TARGET_PX)]
    return found


def keyboard_problems(tab: Tab, stops_max: int = 400) -> list[str]:
    """Step through a new page with the tab key. Reports stops that are missed, out of order, or without a visible
    focus."""
    expected = tab.js("(() => {" + _TOOLS + "return stops().map(said); })()")
    found: list[str] = []
    met: list[int] = []
    for _ in range(min(stops_max, len(expected) + 20)):
        tab.press("Tab")
        here = tab.js(_HERE)
        if here is None or (met and here["at"] == met[0]):
            break  # one full round
        if here["at"] >= 0:
            met.append(here["at"])
        if here["ring"] < 2:
            found.append(f"nothing shows that the focus is here: {here['said']}")
        if not here["isShown"]:
            found.append(f"the focus is out of sight: {here['said']}")
    else:
        found.append(f"no way out with the tab key: {len(met)} stops, {len(expected)} expected")
    found += [f"never reached: {each}" for at, each in enumerate(expected) if at not in met]
    if met != sorted(met):
        found.append(f"the order is not that of the page: {met}")
    return found
