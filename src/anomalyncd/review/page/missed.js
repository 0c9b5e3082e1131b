// Defects that were missed, and false alarms that the detector is to learn: both change more than a class.

import { getLesson, post } from "./api.js";
import { counted } from "./cards.js";
import { Pad } from "./draw.js";

const $ = (id) => document.getElementById(id);
const NEW = "new";
const SHOWN = 12; // names of images in a list

// A window in which a defect is drawn on a whole image; `draw` sends it.
export class Missed {
  constructor(cards, draw) {
    this.cards = cards;
    this.pad = new Pad($("draw-frame"), $("draw-image"), () => ($("draw-add").disabled = !this.pad.strokes.length));
    for (const mode of ["box", "brush"]) {
      $(`draw-${mode}`).addEventListener("change", () => {
        this.pad.mode = mode;
        $("draw-size").disabled = mode === "box";
      });
    }
    $("draw-size").addEventListener("input", () => (this.pad.width = Number($("draw-size").value) / 1000));
    $("draw-back").addEventListener("click", () => this.pad.back());
    $("draw-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!this.pad.strokes.length) return;
      const to = $("draw-target").value === NEW ? null : Number($("draw-target").value);
      $("draw-add").disabled = true;
      const strokes = this.pad.strokes.map(({ points, width }) => ({ points, width }));
      if (await draw({ kind: "draw", image: this.image, strokes, to })) $("draw-dialog").close();
      else $("draw-add").disabled = false;
    });
  }

  open(image, name) {
    this.image = image;
    $("draw-title").textContent = `What was missed in ${name}`;
    $("draw-image").src = `overlay/${image}?v=${this.cards.state.table}-${this.cards.state.version}`;
    $("draw-image").alt = `${name}, whole`;
    const kinds = this.cards.state.classes.filter((one) => one.label > 0);
    $("draw-target").replaceChildren(...kinds.map((one) => new Option(one.name, one.label)), new Option("New class", NEW));
    $("draw-dialog").showModal();
    this.pad.clear();
  }
}

const names = (list) => list.slice(0, SHOWN).join(", ") + (list.length > SHOWN ? ` and ${list.length - SHOWN} more` : "");

// Images whose findings are false alarms are shown to the detector: what that would change is told first, then it is kept or not.
export async function learnAsNormal(cards, images, done) {
  $("lesson-title").textContent = `Learn ${counted(images.length, "image")} as normal`;
  const text = (words) => ($("lesson-text").textContent = words);
  const keep = $("lesson-keep");
  keep.disabled = true;
  $("lesson-progress").hidden = false;
  $("lesson-details").replaceChildren();
  text("Nothing is changed yet: looking at what it would change …");
  $("lesson-dialog").showModal();
  let gone = false;
  $("lesson-dialog").onclose = () => (gone = true);
  const learn = async (apply) => {
    let lesson = await post("api/lesson", { version: cards.state.version, images, apply });
    while (lesson.job.state === "running" && !gone) {
      text(`${lesson.job.stage}${lesson.job.total ? ` ${lesson.job.step} of ${lesson.job.total}` : ""} …`);
      await new Promise((resume) => setTimeout(resume, 300));
      lesson = await getLesson();
    }
    $("lesson-progress").hidden = true;
    if (lesson.job.state === "failed") throw new Error(lesson.job.message);
    return lesson;
  };
  try {
    const told = await learn(false);
    if (gone) return;
    text(
      `Of ${counted(told.n_defective, "other image")} that the run calls defective, ${told.turned.length ? told.turned.length.toLocaleString("en") : "none"} would score like normal ones` +
        (!told.turned.length ? "." : told.lost.length ? `, ${told.lost.length.toLocaleString("en")} of which people placed or named as defects: such would be missed.` : ", and none of these is a defect that people placed or named."),
    );
    $("lesson-details").replaceChildren(...[told.lost.length ? line(`Would be missed: ${names(told.lost)}`) : "", told.turned.length ? line(`Would be normal: ${names(told.turned)}`) : ""].filter(Boolean));
    keep.disabled = false;
    keep.focus();
    keep.onclick = async () => {
      keep.disabled = true;
      $("lesson-progress").hidden = false;
      try {
        await learn(true);
        if (!gone) $("lesson-dialog").close();
        await done(`The detector has learned ${counted(images.length, "image")} as normal.`);
      } catch (error) {
        text(error.message);
      }
    };
  } catch (error) {
    $("lesson-progress").hidden = true;
    text(error.message);
  }
}

function line(words) {
  const element = document.createElement("p");
  element.className = "faint";
  element.textContent = words;
  return element;
}
