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

// steps draws tokens over time: points are [time, tokens] from time 0, each valid from its
// time on.
export function steps(points, end, capacity, label) {
  const x = (t) => (width * Math.min(t / end, 1)).toFixed(1), y = (v) => (height - (height - top) * v / Math.max(capacity, 1)).toFixed(1);
  let path = `M0 ${y(points[0][1])}`;
  for (const [t, v] of points.slice(1)) path += `H${x(t)}V${y(v)}`;
  path += `H${width}`;
  return s("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label},
    s("path", {class: "area", d: path + `V${height}H0Z`}), s("path", {class: "line allowed", d: path}));
}
