// Forms: a new run, new images for a run, and a run again without parts of the picture.

import { FolderField, IgnoreField } from "./fields.js";
import { counted, get, make, post, runLink, runPath } from "./parts.js";
import { back } from "./views.js";

export function newRun(state, does) {
  const name = make("input", { id: "run-name", type: "text", maxlength: 60, autocomplete: "off", spellcheck: "false" });
  const start = make("button", { class: "primary", id: "start", disabled: true }, "Start");
  const images = new FolderField(state, "Images", "A folder with images of one product, some of them with defects. Folders in it are looked into as well.", {
    changed: (value, listing) => {
      start.disabled = !value;
      if (value && listing && !name.value) name.value = listing.name;
      parts.hidden = !listing?.images.length;
      if (listing?.images.length) ignore.show(`folders/picture?${new URLSearchParams({ root: value.root, path: [value.path, listing.images[0]].filter(Boolean).join("/"), side: 900 })}`);
    },
  });
  const normal = new FolderField(state, "Good products", "A folder with images of good products only, if there is one: with it defects are found more surely.", { optional: true });
  const known = new FolderField(state, "Known kinds", "A folder with a folder for each kind that has a name already, with a few images each. Those kinds keep their names; others may be found beside them.", { optional: true, files: false, changed: (value) => value && (from.value = "") });
  const reviewed = state.runs.filter((run) => run.is_finished);
  const from = make("select", { id: "known-run", onchange: () => from.value && known.choose(null) }, make("option", { value: "" }, "no run"), ...reviewed.map((run) => make("option", { value: run.name }, run.name)));
  if (reviewed.length) known.element.append(make("p", { class: "field" }, make("label", { for: "known-run" }, "or names and corrections of"), from));
  const ignore = new IgnoreField();
  const parts = make("details", { class: "ignore", id: "ignore-parts", hidden: true }, make("summary", {}, "Parts of the picture to ignore"), make("p", { class: "faint" }, "A clamp, a time stamp, the edge of the belt: nothing is looked for there, in this run and in new images."), ignore.element);
  const kinds = make("input", { id: "kinds", type: "number", min: 1, max: 1000, placeholder: "auto" });
  const defective = make("input", { id: "all-defective", type: "checkbox" });
  const form = make(
    "form", { class: "card form" },
    images.element, normal.element,
    make("fieldset", {}, make("legend", {}, "What is known"),
      make("p", { class: "field" }, make("label", { for: "kinds" }, "Number of kinds of defects"), kinds, make("span", { class: "faint" }, "left empty, it is estimated; the good ones do not count")),
      make("p", { class: "field" }, make("label", {}, defective, " Every image has a defect"))),
    known.element, parts,
    make("p", { class: "field" }, make("label", { for: "run-name" }, "Name of the run"), name),
    make("div", { class: "row" }, start, make("a", { class: "button", href: "#/" }, "Cancel")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const job = await post("api/runs", { name: name.value.trim(), images: images.value, normal: normal.value, kinds: kinds.value ? Number(kinds.value) : null, all_defective: defective.checked, known: known.value, known_run: from.value || null, ignore: ignore.value });
      does.go(`#/jobs/${job.number}`);
    } catch (error) {
      start.disabled = false;
      does.fail(error);
    }
  });
  return [back(), make("h2", {}, "New run"), form];
}

export async function newPrediction(state, name, does) {
  const run = await get(`api/runs/${encodeURIComponent(name)}`).catch(() => null);
  if (!run) return [back(), make("p", {}, "There is no finished run of this name.")];
  const start = make("button", { class: "primary", id: "start", disabled: true }, "Start");
  const ready = () => (start.disabled = !images.value || Boolean(beside && !beside.value));
  const images = new FolderField(state, "New images", "A folder with images of the same product.", { changed: () => ready() });
  let beside = null;
  if (run.needs !== "image") beside = new FolderField(state, run.needs === "map" ? "Anomaly maps" : "Masks", `This run was made with ${run.needs}s, so new images need ${run.needs}s of the same names.`, { files: false, changed: () => ready() });
  const form = make("form", { class: "card form" }, images.element, beside?.element, make("div", { class: "row" }, start, make("a", { class: "button", href: runLink(name) }, "Cancel")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const job = await post(`api/runs/${encodeURIComponent(name)}/predict`, { images: images.value, maps: beside ? beside.value : null });
      does.go(`#/jobs/${job.number}`);
    } catch (error) {
      start.disabled = false;
      does.fail(error);
    }
  });
  return [back(name, runLink(name)), make("h2", {}, `Predict with ${name}`), form];
}

// The run again, in a run of its own, without parts of the picture; what that takes away is told before.
export async function ignoreParts(state, name, does) {
  const run = state.runs.find((each) => each.name === name);
  if (!run?.is_finished) return [back(), make("p", {}, "There is no finished run of this name.")];
  const words = make("p", { id: "ignore-words", role: "status" }, "Nothing is drawn yet.");
  const start = make("button", { class: "primary", id: "start", disabled: true }, "Make the run again");
  let turn = 0;
  const field = new IgnoreField(async (ignore) => {
    const mine = ++turn;
    start.disabled = true;
    if (!ignore.length) return (words.textContent = "Nothing is drawn yet.");
    try {
      const found = await post(`api/${runPath(name)}/ignore/check`, { ignore });
      if (mine !== turn) return; // something was drawn since
      const kinds = found.classes.map((one) => `${one.n_images} of ${one.name}`).join(", ");
      words.textContent = `${counted(found.n_regions, "region")} would no longer be found${kinds ? ` (${kinds})` : ""}, and ${counted(found.n_images, "image")} would have no other defect.`;
      start.disabled = false;
    } catch (error) {
      does.fail(error);
    }
  });
  field.show(`${runPath(name)}/images/0?side=900`);
  const form = make(
    "form", { class: "card form" },
    make("p", { class: "faint" }, "A clamp, a time stamp, the edge of the belt: nothing is looked for there any more. The run is made again beside this one, from the same images; names and corrections are taken over."),
    field.element, words, make("div", { class: "row" }, start, make("a", { class: "button", href: runLink(name) }, "Cancel")),
  );
  form.addEventListener("submit", (event) => (event.preventDefault(), (start.disabled = true), does.order(`api/${runPath(name)}/ignore`, { ignore: field.value })));
  return [back(name, runLink(name)), make("h2", {}, `Ignore parts of the picture in ${name}`), form];
}
