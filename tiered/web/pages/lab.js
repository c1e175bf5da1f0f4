// The cost lab: choices become sliders, and results update while they move.
// The form works without this script: the button requests the page with the choices.

const form = document.getElementById("lab");
const status = document.getElementById("lab-status");
const WAIT_MS = 200; // a moving slider does not send a request at every step

/** Put a slider in front of a choice, which stays in the form and holds the value. */
function slide(select) {
  const slider = document.createElement("input");
  const shown = document.createElement("output");
  const label = form.querySelector(`label[for="${select.id}"]`);
  Object.assign(slider, {type: "range", id: `${select.id}-slider`, min: 0, max: select.options.length - 1, step: 1});
  slider.value = String(select.selectedIndex);
  shown.id = `${select.id}-shown`;
  shown.htmlFor = slider.id;
  const update = () => {
    const words = select.options[select.selectedIndex].text;
    shown.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  };
  slider.addEventListener("input", () => {
    select.selectedIndex = Number(slider.value);
    update();
  });
  label.htmlFor = slider.id;
  select.hidden = true;
  select.after(slider, shown);
  update();
}

let pending = null; // the request in progress
let waiting = 0;

/** Show results for the values of the form, and cancel the request in progress. */
async function simulate() {
  pending?.abort();
  const mine = (pending = new AbortController());
  const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  const address = `${form.getAttribute("action")}?${words}`;
  status.textContent = "Simulating…";
  try {
    const response = await fetch(address, {cache: "no-store", signal: mine.signal});
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("results");
    if (mine.signal.aborted) return;
    if (!fresh) {
      status.textContent = page.querySelector("main p, main .trouble")?.textContent ?? "The response is unreadable.";
      return;
    }
    const open = [...document.querySelectorAll("#results details")].map((each) => each.open);
    document.getElementById("results").replaceWith(fresh);
    document.querySelectorAll("#results details").forEach((each, at) => (each.open = open[at] ?? false));
    const textOf = (id) => document.getElementById(id)?.textContent ?? "";
    status.textContent = `${textOf("dollars-chosen")} dollars a month as chosen, ${textOf("dollars-now")} now.`;
    history.replaceState(null, "", address);
  } catch (error) {
    if (error.name !== "AbortError") status.textContent = "The manager does not answer: the page shows its last reply.";
  }
}

form.querySelectorAll("select.slider").forEach(slide);
form.addEventListener("submit", (event) => {
  const topic = form.elements.topic;
  if (topic.value !== topic.defaultValue) return; // another topic has other settings: load the whole page
  const rate = form.elements.rate;
  if (rate.value !== rate.defaultValue) return; // another rate is measured again: load the whole page
  event.preventDefault();
  simulate();
});
form.addEventListener("input", (event) => {
  if (event.target.id === "topic" || event.target.id === "rate") return; // sent with the button, when the value is complete
  clearTimeout(waiting);
  waiting = setTimeout(simulate, WAIT_MS);
});
