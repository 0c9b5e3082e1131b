// Forms: a new run, and new images for a run. Folders are chosen in a picker that knows only what the server offers.

import { back } from "./views.js";
import { counted, get, make, picture, post, runLink } from "./parts.js";

// A field whose value is a folder; opens a list of folders in its place.
class FolderField {
  constructor(state, title, hint, { optional = false, changed = () => {} } = {}) {
    this.state = state;
    this.value = null;
    this.changed = () => {}; // not while the form is being made
    this.optional = optional;
    this.at = { root: 0, path: "" };
    this.id = title.toLowerCase().replaceAll(/[^a-z]+/g, "-");
    this.chosen = make("p", { class: "chosen", id: `chosen-${this.id}` });
    this.open = make("button", { type: "button", onclick: () => this.look(), "aria-describedby": `chosen-${this.id}` }, "Choose a folder …");
    this.clear = make("button", { type: "button", hidden: true, onclick: () => this.choose(null) }, "None");
    this.list = make("div", { class: "picker", hidden: true });
    this.element = make("fieldset", { "data-field": this.id }, make("legend", {}, title), make("p", { class: "faint" }, hint), this.chosen, make("div", { class: "row" }, this.open, this.clear), this.list);
    this.choose(null);
    this.changed = changed;
  }

  choose(value, listing) {
    this.value = value;
    this.list.hidden = true;
    this.open.hidden = false;
    this.clear.hidden = !(value && this.optional);
    this.chosen.textContent = value ? `${[this.state.roots[value.root], ...value.path.split("/")].filter(Boolean).join(" / ")}` : this.optional ? "None" : "";
    this.open.textContent = value ? "Choose another folder …" : "Choose a folder …";
    if (value) this.open.focus();
    this.changed(value, listing);
  }

  async look(root = this.at.root, path = this.at.path) {
    this.list.hidden = false;
    this.open.hidden = true;
    if (!this.state.roots.length) return this.list.replaceChildren(make("p", {}, "No folder was opened for this page: start the studio with --images DIR."));
    let found;
    try {
      found = await get(`api/folders?${new URLSearchParams({ root, path })}`);
    } catch (error) {
      this.list.replaceChildren(make("p", { class: "note", role: "alert" }, error.message), make("button", { type: "button", onclick: () => this.look(root, "") }, "Back to the start"));
      return;
    }
    this.at = { root: found.root, path: found.path };
    const roots = this.state.roots.length > 1 ? make("label", {}, "In ", make("select", { onchange: (event) => this.look(Number(event.target.value), "") }, ...this.state.roots.map((name, n) => make("option", { value: n, selected: n === root }, name)))) : null;
    const parts = found.path ? found.path.split("/") : [];
    const crumbs = [make("button", { type: "button", class: "plain", onclick: () => this.look(root, "") }, this.state.roots[root])];
    parts.forEach((name, depth) => crumbs.push(" / ", make("button", { type: "button", class: "plain", onclick: () => this.look(root, parts.slice(0, depth + 1).join("/")) }, name)));
    const inside = (name) => (found.path ? `${found.path}/${name}` : name);
    const use = make("button", { type: "button", class: "primary", "data-use": true, onclick: () => this.choose({ root: found.root, path: found.path }, found) }, `Use “${found.name}”`);
    this.list.replaceChildren(
      ...[
        roots,
        make("p", { class: "crumbs" }, ...crumbs),
        make("ul", { class: "folders" }, ...found.folders.map((name) => make("li", {}, make("button", { type: "button", onclick: () => this.look(root, inside(name)) }, `📁 ${name}`)))),
        make("p", { class: "faint" }, [found.n_images ? `${counted(found.n_images, "image")} here` : "No images here", found.folders.length ? counted(found.folders.length, "folder") : ""].filter(Boolean).join(", ") + (found.more ? " (and more)" : "")),
        make("div", { class: "samples" }, ...found.images.map((name) => picture(`folders/picture?${new URLSearchParams({ root, path: inside(name) })}`))),
        make("div", { class: "row" }, use, make("button", { type: "button", onclick: () => this.choose(this.value) }, "Cancel")),
      ].filter(Boolean),
    );
    use.focus();
  }
}

export function newRun(state, does) {
  const name = make("input", { id: "run-name", type: "text", maxlength: 60, autocomplete: "off", spellcheck: "false" });
  const start = make("button", { class: "primary", id: "start", disabled: true }, "Start");
  const images = new FolderField(state, "Images", "A folder with images of one product, some of them with defects. Folders in it are looked into as well.", {
    changed: (value, listing) => {
      start.disabled = !value;
      if (value && listing && !name.value) name.value = listing.name;
    },
  });
  const normal = new FolderField(state, "Good products", "A folder with images of good products only, if there is one: with it defects are found more surely.", { optional: true });
  const kinds = make("input", { id: "kinds", type: "number", min: 1, max: 1000, placeholder: "auto" });
  const defective = make("input", { id: "all-defective", type: "checkbox" });
  const form = make(
    "form", { class: "card form" },
    images.element, normal.element,
    make("fieldset", {}, make("legend", {}, "What is known"),
      make("p", { class: "field" }, make("label", { for: "kinds" }, "Number of kinds of defects"), kinds, make("span", { class: "faint" }, "left empty, it is estimated; the good ones do not count")),
      make("p", { class: "field" }, make("label", {}, defective, " Every image has a defect"))),
    make("p", { class: "field" }, make("label", { for: "run-name" }, "Name of the run"), name),
    make("div", { class: "row" }, start, make("a", { class: "button", href: "#/" }, "Cancel")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      const job = await post("api/runs", { name: name.value.trim(), images: images.value, normal: normal.value, kinds: kinds.value ? Number(kinds.value) : null, all_defective: defective.checked });
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
  if (run.needs !== "image") beside = new FolderField(state, run.needs === "map" ? "Anomaly maps" : "Masks", `This run was made with ${run.needs}s, so new images need ${run.needs}s of the same names.`, { changed: () => ready() });
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
