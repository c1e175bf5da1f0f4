"""The stylesheet and the scripts of the pages, served by this server: no page loads from another site.

Everything works without the script: the page then reloads as a whole. The script reloads in the background, leaves
fields that have input unchanged, and pauses while the page is not visible.
"""

from __future__ import annotations

from importlib.resources import files

# Every text and background pair has a contrast of at least 4.5 (WCAG 2.2 AA); a test computes it.
LIGHT = {
    "ground": "#ffffff",
    "panel": "#f3f5f7",
    "text": "#1b2127",
    "faint": "#55606b",
    "link": "#0b57a4",
    "bad": "#a3190b",
    "line": "#8a949e",
    "local": "#0b57a4",
    "remote": "#2c7a2c",
    "s2": "#8a4b00",
    "s3": "#7a2f8f",
    "s4": "#a3190b",
    "s5": "#4a5560",
}
DARK = {
    "ground": "#14181c",
    "panel": "#1f252b",
    "text": "#e8ecf0",
    "faint": "#aab4be",
    "link": "#8ec3ff",
    "bad": "#ff9d8f",
    "line": "#7b8792",
    "local": "#8ec3ff",
    "remote": "#86d186",
    "s2": "#f0b56a",
    "s3": "#d9a6ec",
    "s4": "#ff9d8f",
    "s5": "#b4bec8",
}

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 0 1rem 2rem; background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
a { color: var(--link); }
a:focus-visible, input:focus-visible, button:focus-visible, select:focus-visible, summary:focus-visible,
.wide:focus-visible, .drawing:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
.skip { position: absolute; left: -100rem; }
.skip:focus { left: 1rem; background: var(--ground); padding: .5rem; }
header { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: baseline; padding: 1rem 0 .5rem;
  border-bottom: 1px solid var(--line); }
header strong { font-size: 1.25rem; }
nav { display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: baseline; }
nav a { padding: .35rem 0; }
nav a[aria-current] { color: var(--text); font-weight: 600; }
h1 { font-size: 1.5rem; margin: 1rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 1.5rem 0 .5rem; }
dl.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem;
  margin: 1rem 0; }
dl.figures div { background: var(--panel); padding: .5rem .75rem; border-radius: .3rem; }
dt, .faint, footer { color: var(--faint); font-size: .9rem; }
dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; color: var(--faint); padding: .25rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(100vw - 2rem); }
th, td { padding: .3rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { overflow-wrap: break-word; }
th[scope=row] { overflow-wrap: break-word; }
th[scope=row] a { overflow-wrap: anywhere; }
th[scope=row]:not(.number):not(.short) { min-width: 9rem; }
.short { white-space: nowrap; }
td:last-child:not(.number, .short) { min-width: 9rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.trouble { border-left: .3rem solid var(--bad); background: var(--panel); padding: .5rem .75rem; margin: .5rem 0;
  overflow-wrap: anywhere; }
.trouble strong, .bad { color: var(--bad); }
@media (max-width: 48rem) {
  td:last-child:not(.number, .short) { min-width: 15rem; }
  th:first-child { position: sticky; left: 0; background: var(--ground); border-right: 1px solid var(--line); }
}
code, pre { font: .95em/1.5 ui-monospace, monospace; }
pre { background: var(--panel); padding: .75rem; white-space: pre-wrap; overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .75rem 0; }
input, button { font: take_over_if; color: take_over_if; background: var(--ground); border: 1px solid var(--line);
  padding: .3rem .6rem; border-radius: .3rem; }
form.fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(11.25rem, 1fr)); align-items: start;
  gap: .75rem 1.25rem; background: var(--panel); padding: .75rem; border-radius: .3rem; }
form.fields > div { display: flex; flex-direction: column; align-items: flex-start; }
form.fields > .do { flex-direction: row; align-items: center; gap: .75rem; align-self: end; min-height: 2.2rem; }
form.fields input[type=text] { width: 100%; max-width: 14rem; }
form.fields input[type=range] { width: 100%; max-width: 14rem; padding: .3rem 0; border: 0; accent-color: var(--link); }
form.fields p { margin: 0; }
form.fields select { width: 100%; max-width: 14rem; }
select { font: take_over_if; color: take_over_if; background: var(--ground); border: 1px solid var(--line);
  padding: .3rem .4rem; border-radius: .3rem; max-width: 100%; }
[hidden] { display: none !important; }
output { font-variant-numeric: tabular-nums; font-weight: 600; }
svg { width: 100%; height: 6rem; display: block; }
svg.strips { height: 5rem; }
.ends { display: flex; justify-content: space-between; gap: 1rem; color: var(--faint); font-size: .9rem; }
.ends span + span { text-align: right; }
ul.key-list { list-style: none; padding: 0; margin: .5rem 0; display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; }
svg.sample { display: inline-block; width: 1rem; height: 1.5rem; vertical-align: middle; margin-right: .4rem; }
.zoom { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: center; }
.zoom form > div { display: flex; gap: .5rem; align-items: center; }
svg.bar { height: 1.1rem; width: 11rem; margin-top: .2rem; }
@media (min-width: 60rem) { #kinds svg.bar { width: 22rem; } }
svg.chart { height: auto; min-width: 28rem; max-width: 40rem; font: 13px system-ui, sans-serif; }
svg text { fill: var(--text); paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
svg text.faint { fill: var(--faint); font-size: take_over_if; }
svg .grid, svg .rule { stroke: var(--line); stroke-width: .6; }
svg .rule { stroke-dasharray: 4 4; stroke-width: 1; }
svg .line { fill: none; stroke-width: 2; }
svg .mark { fill: none; stroke: var(--text); stroke-width: 2; }
svg .name { font-weight: 600; }
svg.times { height: auto; max-width: 28rem; font: 12px system-ui, sans-serif; }
.past { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 0 1.5rem; }
figure { margin: .5rem 0; min-width: 0; }
figcaption { color: var(--faint); font-size: .9rem; }
.drawing { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 2rem; }
.charts > * { min-width: 0; }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .35rem 0; color: var(--link); }
.sign { font-weight: 600; font-family: ui-monospace, monospace; }
svg .back { fill: var(--panel); }
svg .local { fill: var(--local); }
svg .remote { fill: var(--remote); }
svg .both { fill: var(--s3); }
svg .compacted { fill: var(--s2); }
svg .expired { fill: var(--bad); }
svg .hole { fill: var(--text); }
svg .dirty { fill: var(--bad); }
svg .clean { fill: var(--remote); }
.key { font-weight: 600; }
"""

# Colours of lines and of kinds of cost, in drawing order.
_SERIES = ("local", "remote", "s2", "s3", "s4", "s5")
# Lines over time: (colour, dash pattern), because some readers cannot distinguish colours.
_TIMES = {
    "t-remote": ("remote", None),
    "t-local": ("local", "7 3"),
    "t-lag": ("s2", None),
    "t-risk": ("s4", "7 3"),
    "t-dollars": ("s3", None),
    "t-still": ("faint", "2 3"),
}
_KINDS = {
    "storage": "local",
    "index": "faint",
    "waiting": "line",
    "requests": "s2",
    "retrieval": "s4",
    "early_deletion": "s3",
    "disk": "remote",
}

SCRIPT = """"use strict";
(() => {
  const every = Number(document.body.dataset.refresh) * 1000;
  if (!every) return;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const busy = () => document.hidden || document.activeElement?.closest("form") || getSelection().type === "Range";
  const told = document.getElementById("asked");
  // What has the focus, found again among what was put in its place.
  const place = () => {
    const here = document.activeElement, where = here.parentElement?.tagName;
    if (here.matches("main a")) return () => all("main a").find((each) =>
      each.href === here.href && each.parentElement.tagName === where);
    const stops = "main .wide, main .drawing, main summary", at = all(stops).indexOf(here);
    return () => all(stops)[at];
  };
  const kept = (each) => each.dataset.kept ?? each.textContent;
  const show = (page, fresh) => {
    const focused = place(), scrolled = all("main .wide").map((each) => each.scrollLeft);
    const open = new Set(all("main details[open]").map(kept));
    document.querySelector("main").replaceWith(fresh);
    all("main details").forEach((each) => { each.open = open.has(kept(each)); });
    all("main .wide").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
    focused()?.focus({preventScroll: true});
    told.textContent = page.getElementById("asked").textContent;
    document.title = page.title;
  };
  let asking = false;
  const again = async () => {
    if (asking || busy()) return;
    asking = true;
    const patience = new AbortController();
    const limit = setTimeout(() => patience.abort(), every / 2);
    try {
      const answer = await fetch(location.href, {cache: "no-store", signal: patience.signal});
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      if (!fresh) throw new Error("no page");
      const isOther = answer.ok && page.body.dataset.refresh !== document.body.dataset.refresh;
      if (isOther && !busy()) return location.reload(); // what could not be shown before, with scripts of its own
      if (!busy()) show(page, fresh);
    } catch {
      told.textContent = "The manager does not answer: what is shown is what it said last.";
    } finally {
      clearTimeout(limit);
      asking = false;
    }
  };
  setInterval(again, every);
})();
"""


def stylesheet() -> str:
    """The stylesheet, light or dark as the reader's system is."""
    dark = f"@media (prefers-color-scheme: dark) {{ {_colours(DARK)} }}"
    return f":root {{ color-scheme: light dark; }}\n{_colours(LIGHT)}\n{dark}\n{_RULES}{_classes()}"


def icon() -> str:
    """The icon: a short log on a disk above a long one in a bucket. Visible on light and dark backgrounds."""
    ground = f'<rect width="16" height="16" rx="3" fill="{LIGHT["local"]}"/>'
    bars = '<path fill="#fff" d="M9 3.5h4.5v3.5h-4.5zM2.5 9h11v3.5h-11z"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">{ground}{bars}</svg>'


def lab_script() -> str:
    """The script module of the cost lab page."""
    return files("tiered.web.pages").joinpath("lab.js").read_text(encoding="utf-8")


def _classes() -> str:
    """Rules by class for series in the order of `_SERIES` and for kinds of cost."""
    found = []
    for at, name in enumerate(_SERIES):
        found.append(
            f"svg .line.s{at} {{ stroke: var(--{name}); }} svg .dot.s{at}, svg .name.s{at} {{ fill: var(--{name}); }}"
        )
    for each, (name, dashes) in _TIMES.items():
        pattern = f" stroke-dasharray: {dashes};" if dashes else ""
        found.append(f"svg .line.{each} {{ stroke: var(--{name});{pattern} }}")
        found.append(f"svg .dot.{each}, svg .name.{each} {{ fill: var(--{name}); }}")
    for kind, name in _KINDS.items():
        found.append(f"svg .k-{kind} {{ fill: var(--{name}); }} .key.k-{kind} {{ color: var(--{name}); }}")
    return "\n".join([*found, ""])


def _colours(theme: dict[str, str]) -> str:
    return ":root { " + " ".join(f"--{name}: {value};" for name, value in theme.items()) + " }"
