// The page: asks for the state, shows the view that the address names, and shows again what has changed.

import { ignoreParts, newPrediction, newRun } from "./forms.js";
import { get, post, Refused } from "./parts.js";
import { compareRuns, home, oneJob, oneRun, prediction } from "./views.js";

const $ = (id) => document.getElementById(id);
let state = null;
let shown = ""; // what the view was made from
let turn = 0;
let offline = false;
const entered = new Map(); // what a person entered in the view of this address, by the field's id

const does = {
  demo: () => start("api/demo"),
  order: (path, content) => start(path, content),
  act: async (job, what) => {
    try {
      await post(`api/jobs/${job.number}/${what}`);
      if (what === "forget" && place()[0] === "jobs") does.go("#/");
    } catch (error) {
      fail(error);
    }
    await refresh();
  },
  go: (address) => (location.hash = address),
  fail,
};

async function start(path, content = {}) {
  try {
    const job = await post(path, content);
    does.go(`#/jobs/${job.number}`);
  } catch (error) {
    fail(error);
  }
}

const place = () => location.hash.replace(/^#\/?/, "").split("/").map((part) => decodeURIComponent(part));

// The view of an address, and what it is made from: the same again need not be shown again.
async function view() {
  const [what, name, more] = place();
  if (what === "new") return { key: "new", make: () => newRun(state, does) };
  if (what === "runs" && more === "predict") return { key: `predict ${name}`, make: () => newPrediction(state, name, does) };
  if (what === "runs" && more === "ignore") return { key: `ignore ${name}`, make: () => ignoreParts(state, name, does) };
  if (what === "runs") {
    const own = [state.runs.find((run) => run.name === name), state.jobs.filter((job) => job.run === name)];
    return { key: JSON.stringify(own), make: () => oneRun(state, name, does) };
  }
  if (what === "compare") return { key: `compare ${name} ${more}`, make: () => compareRuns(state, name, more, (a, b) => does.go(`#/compare/${encodeURIComponent(a)}/${encodeURIComponent(b)}`)) };
  if (what === "jobs") {
    const job = await get(`api/jobs/${Number(name)}`);
    const done = job.kind === "predict" && job.state === "done";
    return { key: JSON.stringify(job), make: async () => oneJob(job, does, done ? await prediction(job, does) : null) };
  }
  return { key: JSON.stringify(state), make: () => home(state, does) };
}

async function show() {
  const mine = ++turn;
  const { key, make } = await view();
  const address = location.hash;
  const full = `${address} ${key}`;
  if (full === shown || mine !== turn) return;
  const parts = await make();
  if (mine !== turn) return;
  const moved = !shown.startsWith(`${address} `);
  const open = new Set([...document.querySelectorAll("details[open]")].map((each) => each.id || each.className));
  const closed = new Set([...document.querySelectorAll("details:not([open])")].map((each) => each.id || each.className));
  const focus = focused();
  for (const { id, value, defaultValue } of document.querySelectorAll("#view input[id]")) {
    if (value === defaultValue) entered.delete(id);
    else entered.set(id, value);
  }
  shown = full;
  $("view").replaceChildren(...parts);
  $("view").setAttribute("aria-busy", "false");
  document.title = document.querySelector("#view h2")?.textContent || "Studio";
  if (moved) {
    entered.clear();
    scrollTo(0, 0);
    $("view").focus({ preventScroll: true });
  } else {
    for (const each of document.querySelectorAll("details")) each.open = open.has(each.id || each.className) || (each.open && !closed.has(each.id || each.className));
    for (const [id, value] of entered) enter($(id), value);
    if (focus) document.querySelector(focus)?.focus({ preventScroll: true });
  }
}

// What a person had entered stays, though the view around it was made anew, and also where the field was away for a while:
// the histogram of a run cannot be had in the moment in which a job writes it.
function enter(field, value) {
  if (!field || field.value === value) return;
  field.value = value;
  field.dispatchEvent(new Event("input"));
}

// Where the focus is, in words that still hold when the view is made anew.
function focused() {
  const element = document.activeElement;
  if (!element || !$("view").contains(element)) return "";
  const label = element.getAttribute("aria-label");
  if (label) return `[aria-label="${CSS.escape(label)}"]`;
  if (element.id) return `#${CSS.escape(element.id)}`;
  const href = element.getAttribute("href");
  return href ? `#view a[href="${CSS.escape(href)}"]` : "";
}

async function refresh() {
  try {
    state = await get("api/state");
    if (offline) say("");
    offline = false;
    $("workspace").textContent = state.workspace;
    $("to-compare").hidden = state.runs.filter((run) => run.is_finished).length < 2;
    await show();
  } catch (error) {
    if (error instanceof Refused) fail(error);
    else if (!offline) say("The connection is lost. Jobs go on by themselves; trying again …");
    offline = !(error instanceof Refused);
  }
}

function fail(error) {
  if (!(error instanceof Refused)) console.error(error);
  say(error instanceof Refused ? error.message : "No answer from the server. Is `anomalyncd studio` still running?");
}

function say(words) {
  $("message").hidden = !words;
  $("message").firstElementChild.textContent = words;
}

let timer = 0;
async function watch() {
  clearTimeout(timer);
  await refresh();
  const busy = state?.jobs.some((job) => job.state === "running" || job.state === "waiting");
  timer = setTimeout(watch, document.hidden ? 5000 : busy ? 700 : 2000);
}

$("message").querySelector("button").addEventListener("click", () => say(""));
addEventListener("hashchange", () => (say(""), state ? show().catch(fail) : watch()));
document.addEventListener("visibilitychange", () => !document.hidden && watch());
watch();
