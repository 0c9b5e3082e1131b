"use strict";
(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)"), chosen = null;
  try { chosen = localStorage.getItem("anomalyncd-theme"); } catch (e) { /* not for files in some browsers */ }
  function show() {
    var now = chosen || (dark.matches ? "dark" : "light");
    root.dataset.theme = now;
    button.textContent = now === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to the " + (now === "dark" ? "light" : "dark") + " page");
  }
  button.addEventListener("click", function () {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("anomalyncd-theme", chosen); } catch (e) { /* then it lasts for this visit */ }
    show();
  });
  dark.addEventListener("change", show);
  show();

  if (location.search === "?studio") { // the studio opens it so: at …/runs/NAME/report
    var name = location.pathname.split("/").slice(-2)[0], back = document.getElementById("studio");
    back.querySelector("a").href = "../../#/runs/" + name;
    back.hidden = false;
  }

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (e) { e.open = true; });
    document.querySelectorAll("img[loading]").forEach(function (e) { e.loading = "eager"; });
  });

  var map = document.getElementById("map");
  if (!map) { return; }
  var tip = document.getElementById("tip"), thumb = tip.querySelector("span"), words = tip.querySelector("div");
  var sheet = document.getElementById("sprite"), points = Array.from(map.querySelectorAll("use"));
  var tile = +map.dataset.tile, columns = +map.dataset.columns, rows = +map.dataset.rows, zoom = 2, current = 0, on = null;
  points.forEach(function (point, k) {
    var title = point.querySelector("title");
    point.setAttribute("aria-label", title.textContent);
    title.remove(); // the browser's own tip would cover ours
    point.setAttribute("tabindex", k ? "-1" : "0");
  });
  if (sheet) { // the picture is inside the page once: points show their part of it
    thumb.style.width = thumb.style.height = tile * zoom + "px";
    thumb.style.backgroundSize = columns * tile * zoom + "px " + rows * tile * zoom + "px";
  }
  function enter(point) {
    var k = points.indexOf(point), box = point.getBoundingClientRect(), frame = map.getBoundingClientRect();
    if (k < 0) { return; }
    if (on) { on.classList.remove("on"); }
    on = point;
    on.classList.add("on");
    if (sheet) {
      if (!thumb.style.backgroundImage) { thumb.style.backgroundImage = "url(" + sheet.getAttribute("src") + ")"; }
      thumb.style.backgroundPosition = -(k % columns) * tile * zoom + "px " + -Math.floor(k / columns) * tile * zoom + "px";
    }
    words.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    var x = box.left - frame.left + box.width + 8, y = box.top - frame.top - tip.offsetHeight / 2;
    if (x + tip.offsetWidth > frame.width) { x = box.left - frame.left - tip.offsetWidth - 8; }
    tip.style.left = Math.max(0, x) + "px";
    tip.style.top = Math.max(0, Math.min(y, frame.height - tip.offsetHeight)) + "px";
  }
  function leave() {
    tip.hidden = true;
    if (on) { on.classList.remove("on"); on = null; }
  }
  function go(k) {
    points[current].setAttribute("tabindex", "-1");
    current = (k + points.length) % points.length;
    points[current].setAttribute("tabindex", "0");
    points[current].focus();
  }
  function otherClass(step) {
    var k = current, own = points[current].dataset.k;
    do { k = (k + step + points.length) % points.length; } while (points[k].dataset.k === own && k !== current);
    go(k);
  }
  map.addEventListener("pointerover", function (e) { if (e.target.tagName === "use") { enter(e.target); } });
  map.addEventListener("pointerout", function (e) { if (e.target.tagName === "use" && e.target !== document.activeElement) { leave(); } });
  map.addEventListener("focusin", function (e) { if (e.target.tagName === "use") { current = points.indexOf(e.target); enter(e.target); } });
  map.addEventListener("focusout", leave);
  map.addEventListener("click", function (e) { if (e.target.tagName === "use") { go(points.indexOf(e.target)); } });
  map.addEventListener("keydown", function (e) {
    var moves = { ArrowRight: 1, ArrowLeft: -1 }, jumps = { ArrowDown: 1, ArrowUp: -1 };
    if (moves[e.key]) { go(current + moves[e.key]); } else if (jumps[e.key]) { otherClass(jumps[e.key]); } else if (e.key === "Escape") { leave(); } else { return; }
    e.preventDefault();
  });
  document.querySelectorAll(".legend button").forEach(function (key, _, all) {
    key.addEventListener("click", function () {
      var pick = key.getAttribute("aria-pressed") !== "true";
      all.forEach(function (other) { other.setAttribute("aria-pressed", "false"); });
      key.setAttribute("aria-pressed", String(pick));
      map.classList.toggle("picked", pick);
      points.forEach(function (point) { point.classList.toggle("same", point.dataset.k === key.dataset.k); });
    });
  });
})();
