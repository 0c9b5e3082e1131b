// What helps to decide: suggestions, rare kinds, similar regions, two regions side by side, and the history of actions.

import { getHints, getHistory, getNext, getNormal, getRoutes, getSimilar } from "./api.js";
import { counted } from "./cards.js";

const $ = (id) => document.getElementById(id);

export function crop(id, table) {
  const image = document.createElement("img");
  image.loading = "lazy";
  image.alt = "";
  image.src = `crops/${id}?v=${table}`;
  return image;
}

function button(words, act) {
  const element = document.createElement("button");
  element.type = "button";
  element.textContent = words;
  element.addEventListener("click", act);
  return element;
}

const percent = (share) => `${+(100 * share).toPrecision(2)} %`;

// Merges, splits and rare kinds of the run as it was applied last; asked for once for each such state.
export class Hints {
  constructor(cards, does) {
    this.cards = cards;
    this.does = does; // merge, split
    this.mark = "";
    this.found = null;
  }

  async show(state) {
    const mark = `${state.table} ${state.applied}`;
    if (this.mark !== mark) {
      this.mark = mark;
      this.found = await getHints();
      this.showRare(state);
    }
    const there = new Set(state.classes.filter((c) => c.n_regions && !c.n_moved).map((c) => c.label));
    const merge = this.found.merges.find((hint) => there.has(hint.one) && there.has(hint.other));
    const split = this.found.splits.find((hint) => there.has(hint.label));
    const rows = [];
    if (merge) {
      const lost = `merged, ${percent(merge.share)} of what tells regions apart would be lost`;
      rows.push(this.row(`Of all classes, ${this.cards.title(merge.one)} and ${this.cards.title(merge.other)} are the most alike (${lost}). One kind?`, "Merge them", () => this.does.merge(merge.other, merge.one)));
    }
    if (split) rows.push(this.row(`${this.cards.title(split.label)} is the least alike in itself (it would fall into ${split.sizes.join(" and ")} regions). Two kinds?`, "Split it", () => this.does.split(split.label)));
    $("hints").hidden = !rows.length;
    $("hints").replaceChildren(...rows);
  }

  row(words, act, does) {
    const row = document.createElement("p");
    row.append(words, " ", button(act, does));
    return row;
  }

  showRare(state) {
    $("rare").hidden = !this.found.rare.length;
    $("rare-groups").replaceChildren(
      ...this.found.rare.map((ids) => {
        const group = button("", () => this.cards.select(ids, ids.some((id) => !this.cards.selected.has(id))));
        group.className = "group-of";
        group.setAttribute("aria-label", `Select ${counted(ids.length, "region")} of a rare kind`);
        group.append(...ids.slice(0, 12).map((id) => crop(id, state.table)));
        return group;
      }),
    );
  }
}

export async function openSimilar(cards, region) {
  const found = await getSimilar(region.id);
  const title = `What looks like region ${region.region} of ${region.image_name}`;
  openTiles(cards, title, "The likest first, of all classes. A click selects; then move them together.", found.regions, (n) => `likeness ${found.alike[n].toFixed(2)}`, [region.id]);
}

// Regions that are most worth a look, where the server can tell.
export async function openNext(cards) {
  const found = await getNext();
  openTiles(cards, "Worth a look next", "The run is least sure of these, and they are unlike each other. A click selects; then move them.", found.regions, (n) => `probability ${found.regions[n].probability?.toFixed(2)}`);
}

export const canTellNext = async () => "/api/next" in (await getRoutes()).paths;

function openTiles(cards, title, hint, regions, fact, more = []) {
  const tiles = regions.map((each, n) => {
    const tile = button("", () => (cards.select([each.id], !cards.selected.has(each.id)), mark()));
    tile.className = "tile";
    tile.dataset.region = each.id;
    const words = document.createElement("span");
    words.className = "from";
    words.textContent = cards.title(each.label);
    tile.title = `${each.image_name}, ${fact(n)}`;
    tile.setAttribute("aria-label", `${cards.title(each.label)}, ${each.image_name}, ${fact(n)}`);
    tile.append(crop(each.id, cards.state.table), words);
    return tile;
  });
  const mark = () => tiles.forEach((tile) => tile.setAttribute("aria-pressed", cards.selected.has(Number(tile.dataset.region))));
  mark();
  $("similar-title").textContent = title;
  $("similar-hint").textContent = hint;
  $("similar").replaceChildren(...tiles);
  $("similar-all").onclick = () => (cards.select([...more, ...regions.map((each) => each.id)], true), mark());
  $("similar-dialog").showModal();
}

// Images without a defect, the most suspicious first; what a detector saw in them can be called a defect after all.
export async function openNormal(cards, fail, missed, offset = 0) {
  const found = await getNormal(offset);
  $("normal-title").textContent = `${counted(found.total, "image")} without a defect`;
  const figures = found.images.map((one) => {
    const figure = document.createElement("figure");
    const picture = document.createElement("img");
    picture.loading = "lazy";
    picture.alt = `${one.image_name}, whole`;
    picture.addEventListener("error", () => picture.removeAttribute("src")); // moved since, or too many at once
    picture.src = `overlay/${one.image}?v=${cards.state.table}-${cards.state.version}`;
    const words = document.createElement("figcaption");
    words.textContent = one.false_alarm === null ? one.image_name : `${one.image_name} · ${(100 * one.false_alarm).toPrecision(2)} % of good images look as suspicious`;
    figure.append(picture, words);
    if (one.regions.length) figure.append(button("What is outlined is one", () => (cards.select(one.regions, true), $("normal-dialog").close(), $("target").focus())));
    const draw = button("It has a defect …", () => ($("normal-dialog").close(), missed.open(one.image, one.image_name)));
    draw.setAttribute("aria-label", `${one.image_name} has a defect: draw it`);
    figure.append(draw);
    return figure;
  });
  if (offset) $("normal-images").append(...figures);
  else $("normal-images").replaceChildren(...figures);
  const next = offset + found.images.length;
  $("normal-more").hidden = next >= found.total;
  $("normal-more").onclick = () => openNormal(cards, fail, missed, next).catch(fail);
  $("normal-dialog").onclose = () => $("normal-images").replaceChildren(); // what was not loaded yet need not be made any more
  if (!$("normal-dialog").open) $("normal-dialog").showModal();
}

export function openBeside(cards, ids) {
  const regions = ids.map((id) => [...cards.cards.values()].flatMap((card) => card.regions).find((each) => each.id === id));
  if (regions.some((each) => !each)) return false;
  $("beside-pictures").replaceChildren(
    ...regions.map((region) => {
      const figure = document.createElement("figure");
      const near = crop(region.id, cards.state.table);
      const whole = document.createElement("img");
      whole.alt = `${region.image_name} with the outline of region ${region.region}`;
      whole.src = `overlay/${region.image}?region=${region.id}&v=${cards.state.table}-${cards.state.version}`;
      const words = document.createElement("figcaption");
      words.textContent = `${cards.title(region.label)} · ${region.image_name}`;
      figure.append(near, whole, words);
      return figure;
    }),
  );
  $("beside-dialog").showModal();
  return true;
}

// Actions that can be undone; `undoTo` takes back all down to one.
export async function openHistory(undoTo) {
  const { done, undone } = await getHistory();
  const rows = done.map((step) => {
    const row = document.createElement("li");
    const back = button("Undo down to here", () => ($("history-dialog").close(), undoTo(step.id)));
    back.setAttribute("aria-label", `Undo down to: ${step.text}`);
    row.append(step.text, " ", back);
    return row;
  });
  if (!rows.length) {
    const row = document.createElement("p");
    row.textContent = undone.length ? `Nothing to undo; ${counted(undone.length, "action")} can be redone.` : "Nothing was done yet.";
    rows.push(row);
  }
  $("history-list").replaceChildren(...rows);
  $("history-dialog").showModal();
}

// Zoom by wheel, buttons and keys, pan by dragging.
export class Zoom {
  constructor(frame, image) {
    Object.assign(this, { frame, image, scale: 1, x: 0, y: 0 });
    frame.addEventListener("wheel", (event) => (event.preventDefault(), this.by(event.deltaY < 0 ? 1.25 : 0.8, event)), { passive: false });
    frame.addEventListener("pointerdown", (event) => {
      if (this.scale === 1) return;
      frame.setPointerCapture(event.pointerId);
      this.from = [event.clientX - this.x, event.clientY - this.y];
    });
    frame.addEventListener("pointermove", (event) => this.from && this.move(event.clientX - this.from[0], event.clientY - this.from[1]));
    for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, () => (this.from = null));
  }

  reset() {
    this.scale = 1;
    this.move(0, 0);
  }

  by(factor, at) {
    const box = this.frame.getBoundingClientRect();
    const [u, v] = at ? [at.clientX - box.left - box.width / 2, at.clientY - box.top - box.height / 2] : [0, 0];
    const next = Math.min(12, Math.max(1, this.scale * factor));
    const share = next / this.scale;
    this.scale = next;
    this.move(u - (u - this.x) * share, v - (v - this.y) * share);
  }

  move(x, y) {
    const box = this.frame.getBoundingClientRect();
    const most = [(box.width * (this.scale - 1)) / 2, (box.height * (this.scale - 1)) / 2];
    this.x = Math.max(-most[0], Math.min(most[0], x));
    this.y = Math.max(-most[1], Math.min(most[1], y));
    this.image.style.transform = this.scale === 1 ? "" : `translate(${this.x}px, ${this.y}px) scale(${this.scale})`;
    this.frame.classList.toggle("zoomed", this.scale > 1);
  }
}
