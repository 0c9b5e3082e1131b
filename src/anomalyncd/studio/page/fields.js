// Fields of forms: a folder, which is chosen in a picker that knows only what the server offers, or made of files that are dropped; and parts of a picture.

import { Pad } from "./draw.js";
import { counted, get, make, picture, post, send } from "./parts.js";

const IMAGES = /\.(png|jpe?g|bmp|tiff?|webp)$/i;
const MOST_FILES = 5000;

// A field whose value is a folder; opens a list of folders in its place.
export class FolderField {
  static near = { root: 0, path: "" }; // the folder around the one that was chosen last: where another field begins to look

  constructor(state, title, hint, { optional = false, files = true, changed = () => {} } = {}) {
    this.state = state;
    this.value = null;
    this.changed = () => {}; // not while the form is being made
    this.optional = optional;
    this.at = null;
    this.id = title.toLowerCase().replaceAll(/[^a-z]+/g, "-");
    this.chosen = make("p", { class: "chosen", id: `chosen-${this.id}` });
    this.open = make("button", { type: "button", onclick: () => this.look(), "aria-describedby": `chosen-${this.id}` }, "Choose a folder …");
    this.clear = make("button", { type: "button", hidden: true, onclick: () => this.choose(null) }, "None");
    this.list = make("div", { class: "picker", hidden: true });
    this.input = make("input", { type: "file", multiple: true, accept: ".png,.jpg,.jpeg,.bmp,.tif,.tiff,.webp", hidden: true, "aria-label": `Files for ${title}`, onchange: () => this.take([...this.input.files]) });
    this.send = make("button", { type: "button", onclick: () => this.input.click() }, "Send files …");
    this.sent = make("p", { class: "faint", role: "status" });
    this.element = make("fieldset", { "data-field": this.id }, make("legend", {}, title), make("p", { class: "faint" }, hint), this.chosen, make("div", { class: "row" }, this.open, files && this.send, this.clear, files && make("span", { class: "faint" }, "or drop images here")), files && this.input, this.sent, this.list);
    if (files) this.takeDrops();
    this.choose(null);
    this.changed = changed;
  }

  takeDrops() {
    const over = (on) => this.element.classList.toggle("over", on);
    this.element.addEventListener("dragover", (event) => (event.preventDefault(), over(true)));
    this.element.addEventListener("dragleave", (event) => !this.element.contains(event.relatedTarget) && over(false));
    this.element.addEventListener("drop", async (event) => {
      event.preventDefault();
      over(false);
      this.take(await filesOf(event.dataTransfer));
    });
  }

  // Send files, one after another, into a new folder of the workspace, and choose that.
  async take(files) {
    const images = files.filter((file) => IMAGES.test(file.name));
    if (!images.length) return (this.sent.textContent = "There is no image among these files: PNG, JPEG, BMP, TIFF or WebP.");
    if (images.length > MOST_FILES) return (this.sent.textContent = `${counted(images.length, "image")} are too many to be sent; copy them into a folder, and choose that.`);
    const refused = [];
    this.send.disabled = this.open.disabled = true;
    try {
      const place = await post("api/uploads", { name: this.id });
      const folder = place.path.split("/").at(-1);
      for (const [n, file] of images.entries()) {
        this.sent.textContent = `Sending ${n + 1} of ${images.length.toLocaleString("en")} …`;
        await send(`api/uploads/${encodeURIComponent(folder)}?${new URLSearchParams({ name: file.name })}`, file).catch((error) => refused.push(`${file.name}: ${error.message}`));
      }
      const kept = images.length - refused.length;
      const left = files.length - images.length;
      this.sent.textContent = [`${counted(kept, "image")} sent.`, left ? `${counted(left, "other file")} left out.` : "", refused.length ? `${refused.length} refused, the first because: ${refused[0]}` : ""].filter(Boolean).join(" ");
      if (kept) this.choose(place, await get(`api/folders?${new URLSearchParams(place)}`));
    } catch (error) {
      this.sent.textContent = error.message;
    } finally {
      this.send.disabled = this.open.disabled = false;
      this.input.value = "";
    }
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

  async look(root = (this.at ?? FolderField.near).root, path = (this.at ?? FolderField.near).path) {
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
    const choose = () => {
      FolderField.near = { root: found.root, path: parts.slice(0, -1).join("/") };
      this.choose({ root: found.root, path: found.path }, found);
    };
    const use = make("button", { type: "button", class: "primary", "data-use": true, onclick: choose }, `Use “${found.name}”`);
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

// Files that were dropped on a field, those of folders too; only images.
async function filesOf(transfer) {
  const entries = [...(transfer.items ?? [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const found = [];
  const look = async (entry) => {
    if (found.length > MOST_FILES) return;
    if (entry.isFile) found.push(await new Promise((done, fail) => entry.file(done, fail)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const some = await new Promise((done, fail) => reader.readEntries(done, fail)); // a hundred at a time
        if (!some.length) return;
        for (const inner of some) await look(inner);
      }
    }
  };
  for (const entry of entries) await look(entry);
  return entries.length ? found : [...transfer.files];
}

// Parts of a picture that are to be ignored, drawn on one of the images.
export class IgnoreField {
  constructor(changed = () => {}) {
    this.image = make("img", { alt: "One of the images, to draw on", draggable: "false" });
    this.frame = make("div", { class: "pad" }, this.image);
    this.pad = new Pad(this.frame, this.image, () => changed(this.value));
    this.pad.canvas.id = "ignore-pad";
    const back = make("button", { type: "button", onclick: () => this.pad.back() }, "Take back");
    this.element = make("div", {}, this.frame, make("div", { class: "row" }, back, make("span", { class: "faint" }, "Drag a box over each part.")));
  }

  show(source) {
    if (this.image.getAttribute("src") === source) return;
    this.image.src = source;
    this.pad.clear();
  }

  get value() {
    return this.pad.strokes.map((stroke) => stroke.points);
  }
}
