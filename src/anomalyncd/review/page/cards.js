// One card a class: its name, its regions as tiles, and which of them are selected.

import { getRegions } from "./api.js";

const FIRST = 24; // tiles of a card to begin with
const MORE = 96;
const AT_ONCE = 240; // tiles of one request

export class Cards {
  constructor(main, does) {
    this.main = main;
    this.does = does; // what a card can ask for: name, merge, split, view, drop, selected, fail
    this.cards = new Map(); // label → card
    this.selected = new Set(); // numbers of regions
    this.query = { order: "sure", contains: "", surest: 1, size: "any", place: "any" };
    this.copies = new Map(); // number of an image → names of its copies
    this.state = null;
    this.current = null; // label of the card that was used last
    this.anchor = null; // where a range begins
    this.template = document.getElementById("card-template").content.firstElementChild;
  }

  // Make the cards agree with a state; loads only what has changed.
  async show(state) {
    if (this.state && this.state.table !== state.table) this.select([], false);
    this.state = state;
    const labels = new Set(state.classes.map((c) => c.label));
    for (const [label, card] of this.cards) {
      if (!labels.has(label)) {
        card.element.remove();
        this.cards.delete(label);
      }
    }
    const loads = [];
    let place = this.main.firstElementChild;
    for (const info of state.classes) {
      let card = this.cards.get(info.label);
      if (!card) {
        card = this.makeCard(info.label);
        this.cards.set(info.label, card);
      }
      if (card.element !== place) this.main.insertBefore(card.element, place);
      else place = place.nextElementSibling;
      this.showHead(card, info);
      const mark = JSON.stringify([info.stamp, state.table, state.applied, this.query]);
      if (card.mark !== mark) {
        card.mark = mark;
        loads.push(this.load(card));
      } else {
        this.showTiles(card); // names of classes may have changed
      }
    }
    while (place) {
      const next = place.nextElementSibling;
      if (![...this.cards.values()].some((card) => card.element === place)) place.remove();
      place = next;
    }
    await Promise.all(loads);
    this.main.setAttribute("aria-busy", "false");
    this.filter();
  }

  makeCard(label) {
    const element = this.template.cloneNode(true);
    const find = (selector) => element.querySelector(selector);
    const card = {
      label, element, regions: [], total: 0, wanted: FIRST, tiles: new Map(), loading: 0, mark: "",
      name: find(".name"), count: find(".count"), grid: find(".tiles"), more: find(".more"),
      merge: find(".merge"), split: find(".split"),
    };
    element.dataset.label = label;
    find("label span").textContent = `Name of class ${label}`;
    card.name.disabled = label < 0;
    card.merge.hidden = label === 0;
    card.name.addEventListener("focus", () => card.name.select()); // the next letter begins a new name
    card.name.addEventListener("change", () => this.does.name(label, card.name.value));
    card.name.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.focusTile(card, 0) || card.name.blur();
      if (event.key === "Escape") {
        card.name.value = this.info(label).name;
        this.focusTile(card, 0) || card.name.blur();
        event.stopPropagation();
      }
    });
    card.merge.addEventListener("click", () => this.does.merge(label));
    card.split.addEventListener("click", () => this.does.split(label));
    card.more.addEventListener("click", () => {
      card.wanted += MORE;
      this.load(card);
    });
    element.addEventListener("focusin", () => (this.current = label));
    card.grid.addEventListener("click", (event) => this.clicked(card, event));
    this.takeDrops(card);
    return card;
  }

  // Regions can be dragged to another card: the selected ones if one of them is dragged, else that one.
  takeDrops(card) {
    const { element, grid, label } = card;
    grid.addEventListener("dragstart", (event) => {
      const id = Number(event.target.closest(".tile")?.dataset.region);
      this.dragged = { from: label, ids: this.selected.has(id) ? [...this.selected] : [id] };
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setData("text/plain", counted(this.dragged.ids.length, "region"));
    });
    grid.addEventListener("dragend", () => (this.dragged = null));
    const over = (on) => element.classList.toggle("over", on);
    element.addEventListener("dragover", (event) => {
      if (!this.dragged || this.dragged.from === label || label < 0) return;
      event.preventDefault();
      over(true);
    });
    element.addEventListener("dragleave", (event) => !element.contains(event.relatedTarget) && over(false));
    element.addEventListener("drop", (event) => {
      event.preventDefault();
      over(false);
      if (this.dragged) this.does.drop(this.dragged.ids, label);
    });
  }

  info(label) {
    return this.state.classes.find((c) => c.label === label);
  }

  title(label) {
    const info = this.info(label);
    return info ? info.name : `class ${label}`;
  }

  showHead(card, info) {
    if (document.activeElement !== card.name) card.name.value = info.name;
    const note = info.label === 0 && info.n_regions ? " (false alarms)" : "";
    card.count.textContent = `${counted(info.n_images, "image")} · ${counted(info.n_regions, "region")}${note}`;
    card.split.disabled = info.n_regions < 2;
    card.grid.setAttribute("aria-label", `Regions of ${info.name}`);
    card.merge.setAttribute("aria-label", `Merge ${info.name} into another class`);
    card.split.setAttribute("aria-label", `Split ${info.name}`);
  }

  async load(card) {
    const turn = ++card.loading;
    card.grid.setAttribute("aria-busy", "true");
    const named = this.query.contains && this.matches(card); // a class that is meant itself shows all it has
    const regions = [];
    let total = 0;
    try {
      do {
        const query = { ...this.query, contains: named ? "" : this.query.contains };
        const limit = Math.min(AT_ONCE, card.wanted - regions.length);
        const page = await getRegions(card.label, { ...query, offset: regions.length, limit });
        if (turn !== card.loading) return; // something newer is on its way
        total = page.total;
        regions.push(...page.regions);
        if (!page.regions.length) break;
      } while (regions.length < Math.min(card.wanted, total));
    } catch (error) {
      card.mark = ""; // try again with the next state
      if (turn === card.loading && this.cards.get(card.label) === card) this.does.fail(error);
      return;
    } finally {
      if (turn === card.loading) card.grid.removeAttribute("aria-busy");
    }
    card.regions = regions;
    card.total = total;
    this.showTiles(card);
    this.filter();
  }

  showTiles(card) {
    const focused = card.grid.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? [...card.grid.children].indexOf(focused) : -1;
    const tiles = new Map();
    for (const region of card.regions) {
      const tile = card.tiles.get(region.id) || this.makeTile(region);
      this.showTile(tile, region);
      tiles.set(region.id, tile);
    }
    card.tiles = tiles;
    const wanted = [...tiles.values()];
    if (wanted.length !== card.grid.children.length || wanted.some((tile, i) => tile !== card.grid.children[i])) {
      card.grid.replaceChildren(...wanted);
      if (focused) (focused.isConnected ? focused : wanted[Math.min(place, wanted.length - 1)] || card.name).focus();
    }
    if (!wanted.some((tile) => tile.tabIndex === 0) && wanted.length) wanted[0].tabIndex = 0;
    const left = card.total - card.regions.length;
    card.more.hidden = left <= 0;
    card.more.textContent = `Show ${Math.min(left, MORE)} more of ${left}`;
  }

  makeTile(region) {
    const tile = document.createElement("div");
    tile.className = "tile";
    tile.role = "option";
    tile.tabIndex = -1;
    tile.draggable = true;
    tile.dataset.region = region.id;
    const image = document.createElement("img");
    image.loading = "lazy";
    image.alt = "";
    image.src = `crops/${region.id}?v=${this.state.table}`;
    image.addEventListener("error", () => image.remove());
    const enlarge = document.createElement("span");
    enlarge.className = "enlarge";
    enlarge.textContent = "⤢";
    enlarge.title = "See it in the whole image (Enter)";
    enlarge.setAttribute("aria-hidden", "true");
    tile.append(image, enlarge);
    return tile;
  }

  showTile(tile, region) {
    const facts = [`${region.image_name}, region ${region.region}`];
    if (region.probability !== null) facts.push(`probability ${region.probability.toFixed(2)}`);
    const moved = region.before !== region.label;
    const was = region.drawn ? "drawn" : `was ${this.title(region.before)}`;
    if (moved) facts.push(was);
    else if (region.fixed) facts.push("placed by a person");
    const copies = this.copies.get(region.image);
    if (copies) facts.push(`nearly the same image as ${copies}`);
    tile.classList.toggle("copy", Boolean(copies));
    tile.title = facts.join("\n");
    tile.setAttribute("aria-label", facts.join(", "));
    tile.setAttribute("aria-selected", this.selected.has(region.id));
    let from = tile.querySelector(".from");
    if (moved && !from) {
      from = document.createElement("span");
      from.className = "from";
      tile.append(from);
    }
    if (from) moved ? (from.textContent = was) : from.remove();
  }

  // Images that are nearly the same, as groups of their numbers and names: their regions are marked.
  mark(groups) {
    this.copies = new Map(groups.flatMap((group) => group.map((one) => [one.image, group.filter((other) => other !== one).map((other) => other.name).slice(0, 3).join(", ")])));
    for (const card of this.cards.values()) this.showTiles(card);
  }

  clicked(card, event) {
    const tile = event.target.closest(".tile");
    if (!tile) return;
    const id = Number(tile.dataset.region);
    this.focusTile(card, [...card.grid.children].indexOf(tile));
    if (event.target.classList.contains("enlarge")) this.does.view(card, id);
    else if (event.shiftKey) this.selectRange(card, id);
    else this.toggle(card, id);
  }

  toggle(card, id) {
    this.anchor = { label: card.label, id };
    this.select([id], !this.selected.has(id));
  }

  selectRange(card, id) {
    const ids = card.regions.map((region) => region.id);
    const start = this.anchor && this.anchor.label === card.label ? ids.indexOf(this.anchor.id) : -1;
    if (start < 0) return this.toggle(card, id);
    const end = ids.indexOf(id);
    this.select(ids.slice(Math.min(start, end), Math.max(start, end) + 1), true);
  }

  // Select or leave regions; no regions and false clears all.
  select(ids, on) {
    if (!ids.length && !on) this.selected.clear();
    for (const id of ids) on ? this.selected.add(id) : this.selected.delete(id);
    for (const card of this.cards.values())
      for (const [id, tile] of card.tiles) tile.setAttribute("aria-selected", this.selected.has(id));
    this.does.selected();
  }

  focusTile(card, index) {
    const tile = card.grid.children[index];
    if (!tile) return false;
    for (const other of card.grid.children) other.tabIndex = -1;
    tile.tabIndex = 0;
    tile.focus();
    return true;
  }

  // The card and tile that have the focus, or had it last.
  focused() {
    const tile = document.activeElement?.closest?.(".tile") || null;
    const shown = [...this.cards.values()].filter((card) => !card.element.hidden);
    const holder = document.activeElement?.closest?.(".card");
    const card = shown.find((c) => c.element === holder) || shown.find((c) => c.label === this.current) || shown[0];
    return { card, tile, shown: this.inPageOrder(shown) };
  }

  inPageOrder(cards) {
    const places = [...this.main.children];
    return cards.sort((a, b) => places.indexOf(a.element) - places.indexOf(b.element));
  }

  // Move the focus by an arrow key; returns the region that has it now.
  arrow(key, extend) {
    const { card, tile, shown } = this.focused();
    if (!card) return;
    const tiles = [...card.grid.children];
    if (!tile) return void this.focusTile(card, Math.max(0, tiles.findIndex((t) => t.tabIndex === 0)));
    const columns = tiles.filter((t) => t.offsetTop === tiles[0].offsetTop).length;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    const from = tiles.indexOf(tile);
    const to = from + step;
    if (extend && !this.anchor) this.toggle(card, Number(tile.dataset.region));
    if (this.focusTile(card, to)) {
      if (extend) this.selectRange(card, Number(tiles[to].dataset.region));
      return;
    }
    if (extend) return;
    const filled = shown.filter((c) => c.grid.children.length);
    const next = filled[filled.indexOf(card) + Math.sign(step)];
    if (next) this.focusTile(next, step > 0 ? 0 : next.grid.children.length - 1);
  }

  matches(card) {
    const words = this.query.contains.toLowerCase();
    return this.info(card.label).name.toLowerCase().includes(words) || String(card.label) === words;
  }

  filter() {
    for (const card of this.cards.values())
      card.element.hidden = Boolean(this.query.contains) && !card.total && !this.matches(card);
  }
}

export const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
