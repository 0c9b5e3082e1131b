// A pad over a picture to draw on: boxes and strokes of a brush, in shares of the picture's sides. Works by keyboard too.

const LEAST = 0.004; // of a side: shorter moves are a click
const STEP = 0.02;

export class Pad {
  // frame : element that holds the image alone; changed : called after each stroke
  constructor(frame, image, changed) {
    Object.assign(this, { frame, image, changed, strokes: [], mode: "box", width: 0.03, now: null });
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Drawing: drag to draw. By keyboard: Enter sets a box, arrows move it, Shift and arrows change its size, Backspace takes it away.");
    frame.append(this.canvas);
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.now && this.go(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => this.end());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.paint()).observe(frame);
  }

  clear() {
    this.strokes = [];
    this.show();
  }

  back() {
    this.strokes.pop();
    this.show();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (value) => Math.min(1, Math.max(0, value));
    return [share((event.clientX - box.left) / box.width), share((event.clientY - box.top) / box.height)];
  }

  begin(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.at(event);
    this.now = this.mode === "box" ? { from: at, points: corners(at, at), width: 0 } : { points: [at], width: this.width };
    this.strokes.push(this.now);
    this.paint();
  }

  go(event) {
    const at = this.at(event);
    if (this.mode === "box") this.now.points = corners(this.now.from, at);
    else if (far(this.now.points.at(-1), at) && this.now.points.length < 2000) this.now.points.push(at);
    this.paint();
  }

  end() {
    if (!this.now) return;
    const [from, , to] = this.now.points;
    if (!this.now.width && !far(from, to)) this.strokes.pop(); // a click is no box
    delete this.now.from;
    this.now = null;
    this.show();
  }

  key(event) {
    const last = this.strokes.at(-1);
    const way = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key];
    if (event.key === "Enter") this.strokes.push({ points: corners([0.4, 0.4], [0.6, 0.6]), width: 0 });
    else if (event.key === "Backspace" || event.key === "Delete") this.strokes.pop();
    else if (way && last) {
      const some = event.shiftKey && !last.width ? [1, 2, 3].filter((n) => (way[0] ? n !== 3 : n !== 1)) : null; // right or lower edge
      const moved = last.points.map(([x, y], n) => (some && !some.includes(n) ? [x, y] : [x + way[0], y + way[1]]));
      if (moved.flat().every((value) => value >= 0 && value <= 1)) last.points = moved;
    } else return;
    event.preventDefault();
    event.stopPropagation();
    this.show();
  }

  show() {
    this.paint();
    this.changed();
  }

  paint() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const dense = Math.min(2, devicePixelRatio || 1);
    Object.assign(this.canvas, { width: width * dense, height: height * dense });
    const pen = this.canvas.getContext("2d");
    pen.scale(dense, dense);
    Object.assign(pen, { lineCap: "round", lineJoin: "round" });
    for (const stroke of this.strokes) {
      pen.beginPath();
      stroke.points.forEach(([x, y], n) => (n ? pen.lineTo(x * width, y * height) : pen.moveTo(x * width, y * height)));
      if (stroke.width) {
        if (stroke.points.length === 1) pen.lineTo(stroke.points[0][0] * width + 0.01, stroke.points[0][1] * height);
        Object.assign(pen, { strokeStyle: "#ffb00099", lineWidth: Math.max(2, stroke.width * Math.max(width, height)) });
        pen.stroke();
      } else {
        pen.closePath();
        Object.assign(pen, { fillStyle: "#ffb00044", strokeStyle: "#ffb000", lineWidth: 2 });
        pen.fill();
        pen.stroke();
      }
    }
  }
}

const far = (a, b) => Math.abs(a[0] - b[0]) > LEAST || Math.abs(a[1] - b[1]) > LEAST;

// Upper left, upper right, lower right, lower left of the box between two points.
function corners(a, b) {
  const [x0, x1] = [Math.min(a[0], b[0]), Math.max(a[0], b[0])];
  const [y0, y1] = [Math.min(a[1], b[1]), Math.max(a[1], b[1])];
  return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
}
