// What the page shows: the runs, one run, one job, two runs side by side.

import { counted, day, duration, get, jobCard, make, picture, runLink, runPath } from "./parts.js";

export function home(state, does) {
  const parts = [];
  const open = state.jobs.filter((job) => job.state !== "done" || job.kind === "predict").reverse();
  if (open.length) {
    parts.push(make("h2", {}, "Jobs"), make("div", { class: "grid" }, ...open.map((job) => jobCard(job, does))));
  }
  if (!state.runs.length && !state.jobs.length) parts.push(welcome(does));
  if (state.runs.length) {
    const busy = new Set(state.jobs.filter((job) => job.state === "running").map((job) => job.run));
    const runs = [...state.runs].sort((a, b) => b.finished - a.finished);
    parts.push(make("h2", {}, "Runs"), make("div", { class: "grid runs" }, ...runs.map((run) => runCard(run, busy.has(run.name)))));
  }
  if (state.tables.length) {
    const rows = state.tables.map((name) => make("li", {}, make("a", { href: `days/${encodeURIComponent(name)}` }, name)));
    parts.push(make("h2", {}, "Days"), make("p", { class: "faint" }, "Tables in the workspace, as `anomalyncd watch` writes them: the page of the last day of each."), make("ul", {}, ...rows));
  }
  return parts;
}

function welcome(does) {
  return make(
    "section", { class: "card welcome" },
    make("h2", {}, "Nothing here yet"),
    make("p", {}, "Choose a folder with images of one product. The studio finds the regions that stand out and sorts them into kinds, which you then name."),
    make("p", { class: "faint" }, "No images at hand? The demo makes some of a metal plate with six kinds of defects, and sorts them. It takes a minute or two."),
    make("div", { class: "row" }, make("a", { class: "button primary", href: "#/new" }, "Choose a folder"), make("button", { type: "button", id: "demo", onclick: does.demo }, "Try the demo")),
  );
}

export function facts(run) {
  if (run.trouble) return run.trouble;
  if (!run.is_finished) return "not finished";
  return `${counted(run.n_images, "image")} · ${run.n_normal.toLocaleString("en")} normal · ${counted(run.n_kinds, "kind")} of defects`;
}

function runCard(run, busy) {
  const shown = run.n_regions ? picture(`${runPath(run.name)}/picture?v=${run.stamp}`) : null;
  return make(
    "a", { class: "card run", href: runLink(run.name), "data-run": run.name },
    make("div", { class: "strip" }, shown),
    make("h3", {}, run.name),
    make("p", { class: "faint" }, busy ? "under way" : facts(run)),
    run.finished ? make("p", { class: "faint" }, day(run.finished)) : null,
  );
}

export async function oneRun(state, name, does) {
  const run = state.runs.find((each) => each.name === name);
  const jobs = state.jobs.filter((job) => job.run === name);
  const running = jobs.filter((job) => job.state !== "done" || job.kind === "predict").reverse();
  if (!run && !jobs.length) return [make("p", {}, "There is no such run here. "), make("a", { href: "#/" }, "All runs")];
  const parts = [back(), make("h2", { class: "name-of" }, name)];
  if (run) {
    parts.push(make("p", { class: "faint" }, [facts(run), run.finished ? day(run.finished) : ""].filter(Boolean).join(" · ")));
    if (run.is_finished) {
      parts.push(
        make(
          "div", { class: "row actions" },
          make("a", { class: "button primary", href: `${runPath(name)}/review/`, id: "to-review" }, "Review: name and correct"),
          run.has_report ? make("a", { class: "button", href: `${runPath(name)}/report?studio`, id: "to-report" }, "Report") : null,
          make("a", { class: "button", href: `${runLink(name)}/predict`, id: "to-predict" }, "Predict new images"),
          state.runs.filter((other) => other.is_finished).length > 1 ? make("a", { class: "button", href: `#/compare/${encodeURIComponent(name)}` }, "Compare") : null,
          run.can_move_line ? make("a", { class: "button", href: `${runLink(name)}/ignore`, id: "to-ignore" }, "Ignore parts") : null,
        ),
      );
      if (run.n_regions) parts.push(make("div", { class: "strip wide card" }, picture(`${runPath(name)}/picture?v=${run.stamp}`, "Some regions, one of each of the first classes")));
      parts.push(classTable(run.classes, run.n_images));
      if (run.can_move_line) parts.push(await sensitivity(name, does).catch(() => "")); // a run of masks has no line
    }
  }
  if (running.length) parts.push(make("h3", {}, "Jobs of this run"), make("div", { class: "grid" }, ...running.map((job) => jobCard(job, does))));
  return parts;
}

// How images score, with a line that can be moved: what would change is told before anything does.
export async function sensitivity(name, does) {
  const found = await get(`api/${runPath(name)}/line`);
  const most = Math.max(1, ...found.own, ...found.normal);
  const [low, high] = [found.edges[0], found.edges.at(-1)];
  const bars = (counts, kind) => counts.map((count, n) => bar({ class: kind, x: (600 * n) / counts.length, width: 600 / counts.length - 1, y: 120 - (116 * count) / most, height: (116 * count) / most }));
  const now = found.steps.findIndex((step) => step.share === found.share);
  const mark = bar({ class: "line", y: 0, width: 2, height: 120 });
  const chart = shape("svg", { viewBox: "0 0 600 120", preserveAspectRatio: "none", role: "img", "aria-label": "How many images have which score; the line is where defects begin" }, ...bars(found.normal, "normal"), ...bars(found.own, "own"), mark);
  const slider = make("input", { type: "range", min: 0, max: found.steps.length - 1, step: 1, value: now, id: "share", "aria-describedby": "share-words" });
  const words = make("p", { id: "share-words", role: "status" });
  const apply = make("button", { type: "button", class: "primary", id: "move-line" }, "Draw the line here");
  const show = () => {
    const step = found.steps[slider.value];
    const changed = step.n_defects - found.steps[now].n_defects;
    mark.setAttribute("x", Math.max(0, Math.min(598, (600 * (step.line - low)) / (high - low || 1))));
    apply.disabled = Number(slider.value) === now;
    const change = apply.disabled ? "as it is now" : changed > 0 ? `about ${counted(changed, "image")} more` : changed < 0 ? `about ${counted(-changed, "image")} fewer` : "no other image";
    words.textContent = `${+(100 * step.share).toFixed(2)} % of good images may be called defects: ${change} (${step.n_defects.toLocaleString("en")} of ${found.n_images.toLocaleString("en")} defects).`;
    slider.setAttribute("aria-valuetext", `${+(100 * step.share).toFixed(2)} %`);
  };
  slider.addEventListener("input", show);
  apply.addEventListener("click", () => does.order(`api/${runPath(name)}/line`, { share: found.steps[slider.value].share }));
  show();
  return make(
    "section", { class: "card sensitivity" },
    make("h3", {}, "Normal or defect"),
    make("p", { class: "faint" }, "Images by their score, low to high. Blue: images of this run. Grey: good ones that the detector learned from."),
    chart, make("label", { for: "share" }, "Sensitivity"), slider, words, make("div", { class: "row" }, apply, make("span", { class: "faint" }, "Takes seconds; names and corrections stay.")),
  );
}

const bar = (attributes) => shape("rect", attributes);

function shape(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function classTable(classes, total, chosen, choose) {
  const most = Math.max(1, ...classes.map((one) => one.n_images));
  const rows = classes.map((one) => {
    const name = one.name || `class ${one.label}`;
    const title = choose ? make("button", { type: "button", class: "plain", "aria-pressed": String(chosen === one.label), onclick: () => choose(one.label) }, name) : name;
    const bar = make("progress", { max: most, value: one.n_images, "aria-hidden": "true" });
    return make("tr", { "data-label": one.label }, make("th", { scope: "row" }, title), make("td", { class: "num" }, one.n_images.toLocaleString("en")), make("td", { class: "share" }, bar));
  });
  return make(
    "div", { class: "card scroll", tabindex: 0 },
    make("table", { class: "classes" }, make("caption", { class: "visually-hidden" }, `Classes of ${counted(total, "image")}`),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Class"), make("th", { scope: "col", class: "num" }, "Images"), make("th", { scope: "col" }, make("span", { class: "visually-hidden" }, "Share")))),
      make("tbody", {}, ...rows)),
  );
}

export const back = (words = "All runs", to = "#/") => make("p", { class: "back" }, make("a", { href: to }, `← ${words}`));

export function oneJob(job, does, result) {
  const parts = [back(job.run || "All runs", job.run ? runLink(job.run) : "#/"), make("div", { class: "single" }, jobCard(job, does, { details: true }))];
  if (job.done.length && !result) {
    const rows = job.done.map((stage) => make("tr", {}, make("th", { scope: "row" }, stage.stage), make("td", { class: "num" }, duration(stage.seconds))));
    parts.push(make("details", { class: "card", open: job.state === "running" }, make("summary", {}, counted(job.done.length, "stage") + " done"), make("table", {}, make("tbody", {}, ...rows))));
  }
  if (result) parts.push(...result);
  parts.push(make("details", { class: "card log", id: "log" }, make("summary", {}, "Log"), make("pre", { tabindex: "0" }, job.log || "Nothing yet.")));
  return parts;
}

// The table of a prediction: counts, and the images of the chosen class, more on request.
export async function prediction(job, does) {
  const box = make("div", { class: "results" });
  let label = null;
  let shown = 60;
  const show = async () => {
    const query = new URLSearchParams({ limit: Math.min(shown, 500), ...(label === null ? {} : { label }) });
    const found = await get(`api/jobs/${job.number}/result?${query}`);
    const total = found.classes.reduce((sum, one) => sum + one.n_images, 0);
    const rows = found.images.map((one) =>
      make("tr", {}, make("td", { class: "thumb" }, picture(`jobs/${job.number}/images/${one.id}`)), make("th", { scope: "row" }, one.image), make("td", {}, one.class_name),
        make("td", { class: "num" }, one.probability === null ? "–" : one.probability.toFixed(2))));
    const choose = (one) => {
      label = label === one ? null : one;
      show().catch(does.fail);
    };
    box.replaceChildren(
      make("h3", {}, `${counted(total, "image")} classed`),
      make("p", {}, make("a", { href: `jobs/${job.number}/day`, id: "to-day" }, "Page of the day")),
      classTable(found.classes, total, label, choose),
      make("div", { class: "card scroll", tabindex: 0 }, make("table", { class: "predicted" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "visually-hidden" }, "Picture")), make("th", { scope: "col" }, "Image"), make("th", { scope: "col" }, "Class"), make("th", { scope: "col", class: "num" }, "Probability"))), make("tbody", {}, ...rows))),
      found.images.length < Math.min(found.total, 500) ? make("button", { type: "button", class: "more", onclick: () => ((shown += 120), show().catch(does.fail)) }, `Show more of ${found.total.toLocaleString("en")}`) : "",
    );
  };
  await show();
  return [box];
}

export async function compareRuns(state, first, second, go) {
  const names = state.runs.filter((run) => run.is_finished).map((run) => run.name);
  const pick = (label, chosen, change) =>
    make("label", {}, `${label} `, make("select", { onchange: (event) => change(event.target.value) }, ...names.map((name) => make("option", { value: name, selected: name === chosen }, name))));
  const parts = [back(), make("h2", {}, "Compare two runs of the same images")];
  if (names.length < 2) return [...parts, make("p", {}, "This needs two finished runs.")];
  first = names.includes(first) ? first : names[0];
  second = names.includes(second) && second !== first ? second : names.find((name) => name !== first);
  parts.push(make("div", { class: "row" }, pick("First", first, (name) => go(name, second)), pick("Second", second, (name) => go(first, name))));
  let found;
  try {
    found = await get(`api/compare?${new URLSearchParams({ first, second })}`);
  } catch (error) {
    return [...parts, make("p", { class: "note", role: "status" }, error.message)];
  }
  const hit = new Set(found.matched.map(([row, column]) => `${row},${column}`));
  const only = [found.only_first ? `${counted(found.only_first, "image")} only in ${first}` : "", found.only_second ? `${counted(found.only_second, "image")} only in ${second}` : ""].filter(Boolean);
  parts.push(
    make("p", { id: "compared" }, `${counted(found.shared, "image")} in both: ${found.same.toLocaleString("en")} in the same class, ${(found.shared - found.same).toLocaleString("en")} moved.${only.length ? ` ${only.join(", ")}.` : ""}`),
    make("div", { class: "card scroll", tabindex: 0 }, make("table", { class: "matrix" },
      make("caption", { class: "faint" }, `Rows are classes of ${first}, columns of ${second}. A frame marks classes that are taken for the same.`),
      make("thead", {}, make("tr", {}, make("td", {}), ...found.columns.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...found.rows.map((name, row) => make("tr", {}, make("th", { scope: "row" }, name), ...found.table[row].map((count, column) => make("td", { class: hit.has(`${row},${column}`) ? "num hit" : "num" }, count ? count.toLocaleString("en") : "·"))))))),
    ...found.moved.map((move) =>
      make("section", { class: "card moved" }, make("h3", {}, `${move.before} → ${move.after}`), make("p", { class: "faint" }, counted(move.count, "image")),
        make("div", { class: "tiles" }, ...move.images.map((number) => picture(`${runPath(second)}/images/${number}`))))),
  );
  return parts;
}
