// Windows over the page: what to merge with, how to split, a region in its image, and what an apply did.

import { getMoves } from "./api.js";
import { counted } from "./cards.js";
import { crop, openSimilar, Zoom } from "./hints.js";

const $ = (id) => document.getElementById(id);
const THUMBS = 3;

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
}

export function openMerge(cards, label, merge) {
  $("merge-title").textContent = `Merge ${cards.title(label)} into …`;
  const choices = cards.state.classes.filter((c) => c.label !== label && c.label >= 0);
  $("merge-choices").replaceChildren(
    ...choices.map((info) => {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.label = info.label;
      const words = document.createElement("span");
      words.className = "words";
      words.textContent = info.label === 0 ? `${info.name} (all are false alarms)` : info.name;
      const crops = cards.cards.get(info.label).regions.slice(0, THUMBS);
      button.append(...crops.map((region) => crop(region.id, cards.state.table)), words, note(counted(info.n_regions, "region")));
      button.addEventListener("click", () => {
        $("merge-dialog").close();
        merge(info.label);
      });
      return button;
    }),
  );
  $("merge-dialog").showModal();
}

export function openSplit(cards, label, split) {
  $("split-title").textContent = `Split ${cards.title(label)}`;
  $("parts").max = Math.min(10, cards.info(label).n_regions);
  $("parts").value = 2;
  $("split-form").onsubmit = () => split(Number($("parts").value));
  $("split-dialog").showModal();
  $("parts").select();
}

// A region in its whole image, and from there to the others of the card.
export class Viewer {
  // does : act, which sends an action, and missed, which opens the pad to draw on
  constructor(cards, fail, does) {
    this.cards = cards;
    this.does = does;
    this.zoom = new Zoom($("view-whole"), $("view-image"));
    $("view-in").addEventListener("click", () => this.zoom.by(1.5));
    $("view-out").addEventListener("click", () => this.zoom.by(1 / 1.5));
    $("view-all").addEventListener("change", () => this.show());
    $("view-similar").addEventListener("click", () => openSimilar(cards, this.region).catch(fail));
    $("view-move").addEventListener("click", () => this.act({ kind: "move", to: $("view-target").value === "new" ? null : Number($("view-target").value) }));
    $("view-false-alarm").addEventListener("click", () => this.act({ kind: "false_alarm" }));
    $("view-draw").addEventListener("click", () => ($("view-dialog").close(), does.missed(this.region)));
    $("view-previous").addEventListener("click", () => this.step(-1));
    $("view-next").addEventListener("click", () => this.step(1));
    $("view-heat").addEventListener("change", () => this.show());
    $("view-select").addEventListener("change", () => cards.select([this.region.id], $("view-select").checked));
    $("view-dialog").addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.step(-1);
      else if (event.key === "ArrowRight") this.step(1);
      else if (event.key === "+" || event.key === "-") this.zoom.by(event.key === "+" ? 1.5 : 1 / 1.5);
      else if (event.key === " " && !event.target.closest("button, input")) $("view-select").click();
      else return;
      event.preventDefault();
    });
    $("view-image").addEventListener("error", () => {
      $("view-image").hidden = true;
      $("view-missing").hidden = false;
      $("view-missing").textContent =
        "The image is no longer where it was when the run was made, or cannot be read, or too many were asked for at once.";
    });
    $("view-dialog").addEventListener("close", () => this.cards.focusTile(this.card, this.index));
  }

  open(card, id) {
    this.card = card;
    this.index = card.regions.findIndex((region) => region.id === id);
    $("view-dialog").showModal();
    this.zoom.reset();
    this.show();
  }

  // Do it to the region that is shown, and go on with the next one.
  async act(action) {
    const buttons = [$("view-move"), $("view-false-alarm")];
    for (const button of buttons) button.disabled = true; // one click, one action
    const done = await this.does.act({ ...action, regions: [this.region.id] });
    for (const button of buttons) button.disabled = false;
    if (!done) return;
    if (!this.card.regions.length) return $("view-dialog").close();
    this.index = Math.min(this.index, this.card.regions.length - 1);
    this.zoom.reset();
    this.show();
  }

  get region() {
    return this.card.regions[this.index];
  }

  step(by) {
    const next = this.index + by;
    if (next < 0 || next >= this.card.regions.length) return;
    this.index = next;
    this.zoom.reset();
    this.show();
  }

  show() {
    const region = this.region;
    const facts = [this.cards.title(region.label), `region ${region.region}`];
    for (const name of ["probability", "score", "unknown"])
      if (region[name] !== null) facts.push(`${name} ${region[name].toFixed(2)}`);
    $("view-title").textContent = region.image_name;
    $("view-facts").textContent = facts.join(" · ");
    $("view-missing").hidden = true;
    $("view-image").hidden = false;
    $("view-image").alt = `${region.image_name} with the outline of region ${region.region}`;
    const heat = $("view-heat").checked ? 1 : 0;
    const which = $("view-all").checked ? "" : `region=${region.id}&`;
    $("view-image").src = `overlay/${region.image}?${which}heat=${heat}&v=${this.cards.state.table}-${this.cards.state.version}`;
    const chosen = $("view-target").value;
    const kinds = this.cards.state.classes.filter((one) => one.label > 0);
    $("view-target").replaceChildren(new Option("New class", "new"), ...kinds.map((one) => new Option(one.name, one.label)));
    if (kinds.some((one) => String(one.label) === chosen)) $("view-target").value = chosen;
    $("view-false-alarm").disabled = region.label === 0;
    $("view-similar").disabled = region.drawn;
    $("view-select").checked = this.cards.selected.has(region.id);
    $("view-previous").disabled = this.index === 0;
    $("view-next").disabled = this.index === this.card.regions.length - 1;
  }
}

export function showJob(job) {
  const bar = $("apply-progress");
  bar.hidden = job.state !== "running";
  if (job.total) bar.value = job.step / job.total;
  else bar.removeAttribute("value"); // moves to and fro
  $("apply-title").textContent = { running: "Applying …", done: "Applied", failed: "Not applied" }[job.state];
  const steps = job.total ? ` ${job.step} of ${job.total}` : "";
  $("apply-text").textContent = job.state === "running" ? `${job.stage}${steps}, ${job.seconds} s` : job.message;
}

export async function showMoves(table) {
  const moves = await getMoves();
  $("apply-title").textContent = "What moved";
  $("apply-progress").hidden = true;
  $("apply-text").textContent = moves.total
    ? `${counted(moves.total, "region")} changed class in the last apply.`
    : "No region changed class in the last apply.";
  $("moves").replaceChildren(
    ...moves.groups.map((group) => {
      const section = document.createElement("section");
      section.className = "group";
      const title = document.createElement("h3");
      title.textContent = `${group.before_name} → ${group.after_name}`;
      const followed = group.count - group.asked;
      const parts = [];
      if (group.asked) parts.push(`${group.asked} as corrected`);
      if (followed) parts.push(`${followed} followed`);
      const grid = document.createElement("div");
      grid.className = "tiles";
      grid.append(...group.regions.map((id) => crop(id, table)));
      section.append(title, note(`${counted(group.count, "region")}: ${parts.join(", ")}`), grid);
      return section;
    }),
  );
}

function note(text) {
  const words = document.createElement("span");
  words.className = "faint";
  words.textContent = text;
  return words;
}
