// The page: asks for the state, shows it, sends what is done, and notices what others do.

import { getCopies, getState, getVersion, post, Refused } from "./api.js";
import { Cards, counted } from "./cards.js";
import { canTellNext, Hints, openBeside, openHistory, openNext, openNormal, openSimilar } from "./hints.js";
import { openMerge, openSplit, showJob, showMoves, Viewer } from "./dialogs.js";
import { learnAsNormal, Missed } from "./missed.js";

const $ = (id) => document.getElementById(id);
const NEW = "new";
const inStudio = location.pathname.match(/\/runs\/([^/]+)\/review\/$/);

let state = null;
let busy = false; // an action is on its way
let working = null; // the apply that this window watches
let offline = false;

const cards = new Cards($("classes"), {
  name: (label, name) => name.trim() !== cards.info(label).name && act({ kind: "name", label, name }),
  merge,
  split: (label) => openSplit(cards, label, (parts) => act({ kind: "split", label, parts })),
  view: (card, id) => viewer.open(card, id),
  drop: async (regions, label) =>
    (await act(label === 0 ? { kind: "false_alarm", regions } : { kind: "move", regions, to: label })) && cards.select([], false),
  selected: showSelection,
  fail,
});
const missed = new Missed(cards, act);
const viewer = new Viewer(cards, fail, { act, missed: (region) => missed.open(region.image, region.image_name) });
const hints = new Hints(cards, {
  merge: (from, into) => act({ kind: "merge", from, into }),
  split: (label) => openSplit(cards, label, (parts) => act({ kind: "split", label, parts })),
});

function merge(label) {
  openMerge(cards, label, (into) => act({ kind: "merge", from: label, into }));
}

async function show(next) {
  state = next;
  const name = inStudio ? decodeURIComponent(inStudio[1]) : state.run; // the studio has names of its own
  document.title = `Review ${name}`;
  $("run").textContent = name;
  const defects = state.classes.filter((c) => c.label > 0);
  const regions = state.classes.reduce((sum, c) => sum + c.n_regions, 0);
  $("summary").textContent =
    `${counted(state.n_images, "image")}, ${counted(regions, "region")}, ${counted(defects.length, "defect class").replace("classs", "classes")}`;
  showButtons();
  showSelection();
  await cards.show(state);
  await hints.show(state).catch(() => {}); // they only help
}

function showButtons() {
  const applying = state.job?.state === "running";
  for (const [name, step] of [["undo", state.undo], ["redo", state.redo]]) {
    $(name).disabled = !step || busy || applying;
    $(name).title = step ? `${name[0].toUpperCase()}${name.slice(1)}: ${step.text}` : "";
  }
  $("apply").disabled = busy || applying || !state.n_actions;
  $("apply").textContent = applying ? "Applying …" : state.n_actions ? `Apply ${counted(state.n_actions, "correction")}` : "Apply";
  $("apply").title = state.n_changed ? `They change the class of ${counted(state.n_changed, "region")}.` : "";
  $("moved").hidden = !state.applied || applying;
}

function showSelection() {
  const count = cards.selected.size;
  $("selection").hidden = !count;
  $("selected").textContent = `${counted(count, "region")} selected`;
  $("beside").hidden = count !== 2;
  $("learn").hidden = !count || !state?.can_learn_normal;
  if (!state) return;
  const chosen = $("target").value;
  const options = state.classes.filter((c) => c.label > 0).map((c) => new Option(c.name, c.label));
  $("target").replaceChildren(new Option("New class", NEW), ...options);
  if ([...$("target").options].some((option) => option.value === chosen)) $("target").value = chosen;
}

// One after another: who types fast must not lose a name because the one before is still on its way.
let last = Promise.resolve();
function act(action) {
  last = last.then(() => send(action));
  return last;
}

async function send(action) {
  busy = true;
  showButtons();
  say("");
  try {
    const answer = await post("api/actions", { version: state.version, table: state.table, action });
    busy = false;
    await show(answer.state);
    tell(state.undo && state.undo.id === answer.id ? `Done: ${state.undo.text}` : "Done");
    return answer;
  } catch (error) {
    busy = false;
    await fail(error);
  }
}

async function actOnSelection(action) {
  const { tile } = cards.focused();
  const regions = cards.selected.size ? [...cards.selected] : tile ? [Number(tile.dataset.region)] : [];
  if (!regions.length) return say("Select regions first.");
  if (await act({ ...action, regions })) cards.select([], false);
}

const move = () => actOnSelection({ kind: "move", to: $("target").value === NEW ? null : Number($("target").value) });
const falseAlarm = () => actOnSelection({ kind: "false_alarm" });
const undo = () => !busy && state.undo && act({ kind: "undo", action: state.undo.id });
const redo = () => !busy && state.redo && act({ kind: "redo", action: state.redo.id });

// Take back the last actions, down to the one with this id; stops where something else was done meanwhile.
async function undoTo(id) {
  while (state.undo && state.undo.id >= id) if (!(await undo())) return;
}

async function similar({ card, tile }) {
  const region = tile && card.regions.find((each) => each.id === Number(tile.dataset.region));
  if (region) await openSimilar(cards, region).catch(fail);
}

// The images of what is selected, to the detector as good ones.
async function learn() {
  const regions = [...cards.cards.values()].flatMap((card) => card.regions).filter((each) => cards.selected.has(each.id));
  const images = [...new Set(regions.map((each) => each.image))];
  if (!images.length) return say("Show the selected regions on the page first.");
  await learnAsNormal(cards, images, async (words) => {
    cards.select([], false);
    await show(await getState());
    tell(words);
  });
}

async function apply() {
  if (busy || !state.n_actions) return;
  say("");
  try {
    const job = await post("api/apply", { version: state.version });
    working = state.version;
    $("moves").replaceChildren();
    showJob(job);
    $("apply-dialog").showModal();
    watch();
  } catch (error) {
    await fail(error);
  }
}

async function seeMoves() {
  try {
    await showMoves(state.table);
    if (!$("apply-dialog").open) $("apply-dialog").showModal();
  } catch (error) {
    await fail(error);
  }
}

async function fail(error) {
  say(error instanceof Refused ? error.message : "No answer from the server. Is `anomalyncd review` still running?");
  if (!state) return;
  try {
    await show(error.state || (await getState()));
  } catch {
    showButtons();
  }
}

function say(words) {
  $("message").hidden = !words;
  $("message").firstElementChild.textContent = words;
}

function tell(words) {
  $("status").textContent = words;
}

// Once a second: has anybody done anything, and how far is the apply?
let timer = 0;
async function watch() {
  clearTimeout(timer);
  try {
    const now = await getVersion();
    if (offline) say("");
    offline = false;
    if (!state) await show(await getState());
    if (working !== null && now.job) {
      showJob(now.job);
      if (now.job.state !== "running") {
        working = null;
        await show(await getState());
        if (now.job.state === "done") await seeMoves();
        else say(now.job.message);
      }
    } else if (state && !busy && (now.version !== state.version || now.job?.state !== state.job?.state)) {
      const before = state.applied;
      await show(await getState());
      const words = state.applied !== before ? "The corrections were applied" : state.undo ? `${state.undo.text}` : "undone";
      tell(`Another window: ${words}`);
    }
  } catch (error) {
    if (!offline && !(error instanceof Refused)) say("The connection is lost. Trying again …");
    offline = true;
  }
  timer = setTimeout(watch, working !== null ? 300 : document.hidden ? 5000 : 1000);
}

document.addEventListener("visibilitychange", () => !document.hidden && state && watch());
$("undo").addEventListener("click", undo);
$("redo").addEventListener("click", redo);
$("apply").addEventListener("click", apply);
$("moved").addEventListener("click", seeMoves);
$("help").addEventListener("click", () => $("help-dialog").showModal());
$("move").addEventListener("click", move);
$("false-alarm").addEventListener("click", falseAlarm);
$("learn").addEventListener("click", () => learn().catch(fail));
$("clear").addEventListener("click", () => cards.select([], false));
$("message").querySelector("button").addEventListener("click", () => say(""));
$("beside").addEventListener("click", () => openBeside(cards, [...cards.selected]) || say("Show both regions on the page first."));
$("next").addEventListener("click", () => openNext(cards).catch(fail));
$("normal").addEventListener("click", () => openNormal(cards, fail, missed).catch(fail));
$("history").addEventListener("click", () => openHistory(undoTo).catch(fail));
for (const name of ["surest", "size", "place"]) $(name).addEventListener("change", () => look({ [name]: $(name).value }));
$("order").addEventListener("change", () => look({ order: $("order").value }));
let typing = 0;
$("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => look({ contains: $("filter").value.trim() }), 250);
});

function look(query) {
  cards.query = { ...cards.query, ...query };
  if (state) cards.show(state);
}

const SHORTCUTS = {
  n: ({ card }) => {
    card?.name.focus();
    card?.name.select();
  },
  m: ({ card }) => card && card.label !== 0 && merge(card.label),
  s: ({ card }) => card && !card.split.disabled && card.split.click(),
  v: () => (cards.selected.size ? $("target").focus() : say("Select regions first.")),
  f: falseAlarm,
  l: similar,
  u: undo,
  r: redo,
  a: apply,
  "/": () => $("filter").focus(),
  "?": () => $("help-dialog").showModal(),
  Escape: () => cards.select([], false),
  Enter: ({ card, tile }) => tile && viewer.open(card, Number(tile.dataset.region)),
  " ": ({ card, tile }) => tile && cards.toggle(card, Number(tile.dataset.region)),
};

document.addEventListener("keydown", (event) => {
  if (!state || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = event.target.closest?.("input, select, textarea");
  if (field) {
    if (event.key === "Escape" && field.id === "filter") {
      field.value = "";
      look({ contains: "" });
      field.blur();
    } else if (event.key === "Enter" && field.id === "target") move();
    return;
  }
  const button = event.target.closest?.("button");
  if (button && (event.key === "Enter" || event.key === " ")) return;
  if (event.key.startsWith("Arrow")) {
    cards.arrow(event.key, event.shiftKey);
  } else {
    const does = SHORTCUTS[event.key];
    if (!does) return;
    does(cards.focused());
  }
  event.preventDefault();
});

if (inStudio) {
  $("studio").href = `../../../#/runs/${inStudio[1]}`;
  $("studio").hidden = false;
}

try {
  await show(await getState());
  if (state.notice) say(state.notice);
  $("next").hidden = !(await canTellNext().catch(() => false));
  cards.mark((await getCopies().catch(() => ({ groups: [] }))).groups); // it only helps
} catch (error) {
  $("classes").replaceChildren();
  say(error instanceof Refused ? error.message : "No answer from the server.");
}
watch();
