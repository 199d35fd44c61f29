// Charts in SVG.
import {s} from "./dom.js";

const width = 600, height = 150, top = 8;

// lines draws series of numbers, oldest first, that end at the right edge. Each is
// {kind, values}; length is how many values fit.
export function lines(series, length, label) {
  const most = Math.max(1, ...series.flatMap((one) => one.values));
  const x = (i, n) => width * (1 - (n - 1 - i) / (length - 1));
  const y = (v) => height - (height - top) * v / most;
  return s("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label},
    s("line", {class: "grid", x1: 0, x2: width, y1: y(most / 2), y2: y(most / 2)}),
    series.map(({kind, values}) => s("polyline", {class: "line " + kind, points: values.map((v, i) => `${x(i, values.length).toFixed(1)},${y(v).toFixed(1)}`).join(" ")})));
}
