"use strict";
(() => {
  const every = Number(document.body.dataset.refresh) * 1000;
  if (!every) return;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const busy = () => document.hidden || document.activeElement?.closest("form") || getSelection().type === "Range";
  const status = document.getElementById("asked");
  // Returns a function that finds the focused element again after the content was replaced.
  const place = () => {
    const here = document.activeElement, where = here.parentElement?.tagName;
    if (here.matches("main a")) return () => all("main a").find((each) =>
      each.href === here.href && each.parentElement.tagName === where);
    const stops = "main .wide, main .drawing, main summary", at = all(stops).indexOf(here);
    return () => all(stops)[at];
  };
  const keyOf = (each) => each.dataset.kept ?? each.textContent;
  const show = (page, fresh) => {
    const focused = place(), scrolled = all("main .wide").map((each) => each.scrollLeft);
    const open = new Set(all("main details[open]").map(keyOf));
    document.querySelector("main").replaceWith(fresh);
    all("main details").forEach((each) => { each.open = open.has(keyOf(each)); });
    all("main .wide").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
    focused()?.focus({preventScroll: true});
    status.textContent = page.getElementById("asked").textContent;
    document.title = page.title;
  };
  let isLoading = false;
  const reload = async () => {
    if (isLoading || busy()) return;
    isLoading = true;
    const abort = new AbortController();
    const limit = setTimeout(() => abort.abort(), every / 2);
    try {
      const response = await fetch(location.href, {cache: "no-store", signal: abort.signal});
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.querySelector("main");
      if (!fresh) throw new Error("no page");
      const isOther = response.ok && page.body.dataset.refresh !== document.body.dataset.refresh;
      if (isOther && !busy()) return location.reload(); // a page with other scripts, or one that was not available before
      if (!busy()) show(page, fresh);
    } catch {
      status.textContent = "The manager does not answer: the page shows its last reply.";
    } finally {
      clearTimeout(limit);
      isLoading = false;
    }
  };
  setInterval(reload, every);
})();
