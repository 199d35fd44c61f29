// Elements and numbers. Text is always a text node, so that a key is shown as it is.

// h makes an element: h("td", {class: "n"}, "7"). A property that begins with "on" is a
// listener.
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

// s makes an element of SVG.
export function s(tag, props, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(e, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c != null && c !== false));
  return e;
}

// table makes a table. A column is [title, class].
export function table(columns, rows, empty) {
  if (rows.length === 0) return h("p", {class: "quiet"}, empty);
  return h("div", {class: "scroll"}, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", {class: kind, scope: "col"}, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((c, i) => h("td", {class: columns[i][1]}, c)))))));
}

export function card(title, value, bad) {
  return h("div", {class: "card"}, h("b", {class: bad && "refused"}, value), h("span", {}, title));
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const short = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});

export const count = (n) => (n === 9007199254740991 ? "unlimited" : whole.format(n));

// span writes a length of time in microseconds.
export function span(us) {
  if (us === 0) return "now";
  for (const [unit, size] of [["d", 864e8], ["h", 36e8], ["min", 6e7], ["s", 1e6], ["ms", 1e3]]) {
    if (us >= size) return short.format(us / size) + " " + unit;
  }
  return short.format(us) + " µs";
}
