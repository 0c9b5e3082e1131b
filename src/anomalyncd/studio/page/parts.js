// Small parts that all views use: elements, words, and talking to the server.

export class Refused extends Error {}

export async function get(path) {
  return call(path, {});
}

export async function post(path, content = {}) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
  });
}

export async function send(path, file) {
  return call(path, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
}

async function call(path, options) {
  const answer = await fetch(path, options);
  let content = {};
  try {
    content = await answer.json();
  } catch {
    // the words below say enough
  }
  if (!answer.ok) throw new Refused(content.detail || `The server answered ${answer.status}.`);
  return content;
}

// An element: make("p", {class: "faint", onclick: f}, "text", child, …). Text is never markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
export const runPath = (name) => `runs/${encodeURIComponent(name)}`;
export const runLink = (name) => `#/runs/${encodeURIComponent(name)}`;

export function day(seconds) {
  return new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// A picture that leaves its place empty where there is none.
export function picture(source, alt = "") {
  return make("img", { src: source, alt, loading: "lazy", onerror: (event) => (event.target.style.visibility = "hidden") });
}

const KINDS = { discover: "New run", demo: "Demo", predict: "Predict" };
const STATES = { waiting: "waits for its turn", running: "", stopped: "stopped", failed: "failed", done: "done" };

// One job: what it does, how far it is, and what can be done about it.
export function jobCard(job, does, { details = false } = {}) {
  const title = make(
    "h3", {},
    details ? `${KINDS[job.kind] ?? job.kind}: ${job.title}` : make("a", { href: `#/jobs/${job.number}` }, `${KINDS[job.kind] ?? job.kind}: ${job.title}`),
  );
  const parts = [title];
  if (job.state === "running") {
    const bar = make("progress", { max: 1, "aria-label": job.stage || "Starting" });
    if (job.total) bar.value = Math.min(1, job.step / job.total);
    const steps = job.total ? `${job.step.toLocaleString("en")} of ${job.total.toLocaleString("en")}` : "";
    const left = job.left === null ? "" : `about ${duration(job.left)} left in this stage`;
    parts.push(make("p", { class: "stage" }, [job.stage || (job.done.length ? "Between two stages" : "Starting"), steps, left].filter(Boolean).join(" · ")), bar);
  } else {
    const words = job.state === "done" && job.done.length ? `done in ${duration(job.done.reduce((sum, stage) => sum + stage.seconds, 0))}` : STATES[job.state];
    parts.push(make("p", { class: `stage ${job.state}` }, job.message ? `${words}: ${job.message}` : words));
  }
  const buttons = [];
  if (job.state === "done" && job.kind !== "predict") buttons.push(make("a", { class: "button primary", href: runLink(job.run), id: "to-run" }, "See the run"));
  const button = (words, act, label) => buttons.push(make("button", { type: "button", onclick: act, "aria-label": label }, words));
  if (job.state === "running" || job.state === "waiting") button("Stop", () => does.act(job, "stop"), `Stop ${job.title}`);
  if (job.state === "stopped" || job.state === "failed") button("Resume", () => does.act(job, "resume"), `Resume ${job.title}`);
  if (job.state !== "running" && (job.state !== "done" || job.kind !== "predict" || details))
    button("Remove from list", () => does.act(job, "forget"), `Remove from list: ${job.title}`);
  if (job.state === "done" && job.kind === "predict" && !details) buttons.push(make("a", { class: "button", href: `#/jobs/${job.number}` }, "Result"));
  return make("section", { class: "card job", "data-job": job.number, "data-state": job.state }, ...parts, make("div", { class: "row" }, ...buttons));
}
