// The cost lab: choices become sliders, and results follow them while they move.
// Without this the form works all the same: the button asks for the page with what was chosen.

const form = document.getElementById("lab");
const told = document.getElementById("lab-status");
const WAIT_MS = 200; // a slider on its way is not asked about at every step

/** A slider in the place of a choice, which stays in the form and holds the value. */
function slide(select) {
  const slider = document.createElement("input");
  const shown = document.createElement("output");
  const label = form.querySelector(`label[for="${select.id}"]`);
  Object.assign(slider, {type: "range", id: `${select.id}-slider`, min: 0, max: select.options.length - 1, step: 1});
  slider.value = String(select.selectedIndex);
  shown.id = `${select.id}-shown`;
  shown.htmlFor = slider.id;
  const tell = () => {
    const words = select.options[select.selectedIndex].text;
    shown.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  };
  slider.addEventListener("input", () => {
    select.selectedIndex = Number(slider.value);
    tell();
  });
  label.htmlFor = slider.id;
  select.hidden = true;
  select.after(slider, shown);
  tell();
}

let asked = null; // what is under way
let waiting = 0;

/** Fresh results for what the form holds; what was asked before is no longer wanted. */
async function simulate() {
  asked?.abort();
  const mine = (asked = new AbortController());
  const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  const address = `${form.getAttribute("action")}?${words}`;
  told.textContent = "Simulating…";
  try {
    const answer = await fetch(address, {cache: "no-store", signal: mine.signal});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("results");
    if (mine.signal.aborted) return;
    if (!fresh) {
      told.textContent = page.querySelector("main p, main .trouble")?.textContent ?? "No answer that could be read.";
      return;
    }
    const open = [...document.querySelectorAll("#results details")].map((each) => each.open);
    document.getElementById("results").replaceWith(fresh);
    document.querySelectorAll("#results details").forEach((each, at) => (each.open = open[at] ?? false));
    const say = (id) => document.getElementById(id)?.textContent ?? "";
    told.textContent = `${say("dollars-chosen")} dollars a month as chosen, ${say("dollars-now")} now.`;
    history.replaceState(null, "", address);
  } catch (error) {
    if (error.name !== "AbortError") told.textContent = "The manager does not answer: what is shown is what it said last.";
  }
}

form.querySelectorAll("select.slider").forEach(slide);
form.addEventListener("submit", (event) => {
  const topic = form.elements.topic;
  if (topic.value !== topic.defaultValue) return; // another topic has other settings: a whole page
  const rate = form.elements.rate;
  if (rate.value !== rate.defaultValue) return; // another rate is measured anew: a whole page
  event.preventDefault();
  simulate();
});
form.addEventListener("input", (event) => {
  if (event.target.id === "topic" || event.target.id === "rate") return; // asked about when it is whole
  clearTimeout(waiting);
  waiting = setTimeout(simulate, WAIT_MS);
});
