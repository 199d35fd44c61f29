// The page Playground: a limit and calls to it, decided in virtual time by dipwell itself.
import {card, count, h, s, span, table} from "./dom.js";
import {openPage} from "./menu.js";
import {Engine, field, read, write} from "./tools.js";

const width = 600, height = 150, strip = 44, top = 8;
const parts = 60, tallest = 20; // of a drawn pattern: parts of the span, and the most calls in one
const seconds = 10; // that a run takes to play

const algorithms = [["token_bucket", "token bucket"], ["fixed_window", "fixed window"], ["interval", "interval"], ["leaky_bucket", "leaky bucket"], ["sliding_window", "sliding window"]];
const verbs = [["take", "take"], ["take_up_to", "take up to"], ["reserve", "reserve, and wait"]];
const patterns = [["steady", "steady"], ["bursts", "bursts"], ["poll", "poll at the retry time"], ["drawn", "drawn"]];
const whole = {type: "number", min: 0, step: 1}, short = {size: 7};

const fields = {
  algorithm: field("algorithm", "token_bucket", {}, algorithms),
  rate: field("rate", "2", {...whole, min: 1}), per: field("per", "1s", short),
  burst: field("burst", "10", {...whole, placeholder: "the rate"}), max_debt: field("max_debt", "", {...whole, placeholder: "one burst"}),
  block: field("block", "", {size: 7, placeholder: "not"}), verb: field("verb", "take", {}, verbs), cost: field("cost", "1", whole),
  pattern: field("pattern", "bursts", {}, patterns), every: field("every", "4s", short), count: field("count", "12", {...whole, min: 1}),
  span: field("span", "20s", short), drawn: field("drawn", "", {placeholder: "3,0,5"}),
};
const labels = {max_debt: "debt at most", block: "then blocked for", per: "per", verb: "a call", cost: "tokens each", every: "every", count: "calls each time", span: "for", drawn: "calls in each part"};
const label = (name) => h("label", {class: name === "drawn" && "grow"}, labels[name] ?? name, fields[name]);

openPage("Playground");
const engine = new Engine();
let run, busy = false, again = false, playing = 0;

function settings() {
  const v = Object.fromEntries(Object.entries(fields).map(([name, f]) => [name, f.value.trim()]));
  const windows = ["fixed_window", "interval", "sliding_window"].includes(v.algorithm), bursts = v.algorithm !== "leaky_bucket" && v.algorithm !== "sliding_window";
  const limit = ["play=" + v.rate + "/" + v.per, "algorithm=" + v.algorithm, v.burst && bursts && "burst=" + v.burst,
    v.max_debt && v.algorithm !== "sliding_window" && "max_debt=" + v.max_debt, v.block && "block=" + v.block, windows && "start=0s"].filter(Boolean).join(",");
  return {limit, verb: v.verb, cost: Number(v.cost), span: v.span, pattern: v.pattern, every: v.every, count: Number(v.count), drawn: numbers(v.drawn)};
}

const numbers = (text) => (text === "" ? [] : text.split(",").map(Number));

// change makes a run with the present settings, and again if they change meanwhile.
async function change() {
  again = true;
  if (busy) return;
  busy = true;
  while (again) {
    again = false;
    try {
      run = await engine.call("play", [JSON.stringify(settings())]);
      say(run.warning ?? run.stopped ?? "", false);
      draw();
    } catch (err) {
      say(err.message, true);
    }
  }
  busy = false;
}

const note = h("p", {id: "note", role: "status"}), at = h("input", {id: "at", type: "range", min: 0, max: 1000, value: 1000, "aria-label": "Time"});
const play = h("button", {id: "play", type: "button", onclick: () => (playing ? stop() : start())}, "Play");
const stage = h("div"), bucket = h("div", {class: "bucket"}), clock = h("span", {id: "clock"}), cards = h("div", {class: "cards"}), answers = h("div"), pad = h("div");
const drawnLabel = label("drawn"), everyLabel = label("every"), countLabel = label("count"), burstLabel = label("burst");

function say(text, wrong) {
  note.textContent = text;
  note.className = wrong ? "fault" : "quiet";
}

const x = (t) => (width * t / run.span_us).toFixed(1);

function draw() {
  const levels = run.level.map(([, v]) => v), most = Math.max(run.capacity, ...levels, 1), least = Math.min(0, ...levels);
  const y = (v) => (height - (height - top) * (v - least) / (most - least)).toFixed(1);
  let path = "";
  for (const [t, v] of run.level) path += path === "" ? `M${x(t)} ${y(v)}` : run.steps ? `H${x(t)}V${y(v)}` : `L${x(t)} ${y(v)}`;
  const marks = (allowed) => bars(allowed).map(([t, n]) => (allowed ? `M${x(t)} ${strip / 2}v${-n}` : `M${x(t)} ${strip / 2}v${n}`)).join("");
  const box = (tall) => ({viewBox: `0 0 ${width} ${tall}`, preserveAspectRatio: "none", role: "img"});
  stage.replaceChildren(
    s("svg", {class: "chart", ...box(height), "aria-label": `Free tokens, from ${Math.min(...levels).toFixed(1)} to ${Math.max(...levels).toFixed(1)}`},
      s("line", {class: "grid", x1: 0, x2: width, y1: y(run.capacity), y2: y(run.capacity)}), s("line", {class: "grid", x1: 0, x2: width, y1: y(0), y2: y(0)}),
      s("path", {class: "area", d: path + `V${y(0)}H0Z`}), s("path", {class: "line allowed", d: path}), cursor(height)),
    s("svg", {class: "chart marks", ...box(strip), "aria-label": `${run.allowed} calls allowed, ${run.refused} refused`},
      s("line", {class: "grid", x1: 0, x2: width, y1: strip / 2, y2: strip / 2}), s("path", {class: "mark allowed", d: marks(true)}), s("path", {class: "mark refused", d: marks(false)}), cursor(strip)),
    h("p", {class: "scale"}, h("span", {}, "0"), h("span", {}, `free tokens; the line on top is the capacity, ${count(run.capacity)}`),
      h("span", {}, h("i", {class: "swatch"}), "allowed, up"), h("span", {}, h("i", {class: "swatch down"}), "refused, down"), h("span", {}, span(run.span_us))));
  answers.replaceChildren(table([["at", "n"], ["answer", ""], ["tokens", "n"], ["left", "n"], ["wait", "n"]], run.calls.slice(0, 200).map((c) => [
    span(c.t_us).replace("now", "0"), c.allowed ? "allowed" : c.never ? "never" : "refused", count(c.granted), count(c.remaining),
    c.allowed ? (c.delay_us ? span(c.delay_us) : "") : c.never ? "–" : span(c.retry_after_us ?? 0)]), "No calls."));
  drawPad();
  show();
}

// bars returns [time, height] of the calls that were allowed, or of the others: those that
// lie together are one bar.
function bars(allowed) {
  const sum = (want) => {
    const at = new Map();
    for (const c of run.calls) if (c.allowed === want) at.set(Math.floor(200 * c.t_us / run.span_us), (at.get(Math.floor(200 * c.t_us / run.span_us)) ?? 0) + 1);
    return at;
  };
  const most = Math.max(1, ...sum(true).values(), ...sum(false).values());
  return [...sum(allowed)].map(([i, n]) => [run.span_us * i / 200, ((strip / 2 - 3) * Math.max(0.2, n / most)).toFixed(1)]);
}

// perPart returns how many calls there are in each part of the time.
function perPart() {
  const n = Array(parts).fill(0);
  for (const c of run.calls) n[Math.min(parts - 1, Math.floor(parts * c.t_us / run.span_us))]++;
  return n;
}

const cursor = (tall) => s("line", {class: "cursor", y1: 0, y2: tall});

// show shows the run at the time of the slider.
function show() {
  if (!run) return;
  const t = run.span_us * at.value / 1000, made = run.calls.filter((c) => c.t_us <= t), allowed = made.filter((c) => c.allowed);
  const free = levelAt(t), full = Math.max(0, Math.min(1, free / Math.max(1, run.capacity)));
  for (const line of stage.querySelectorAll(".cursor")) {
    line.setAttribute("x1", x(t));
    line.setAttribute("x2", x(t));
  }
  clock.textContent = "at " + span(Math.round(t)).replace("now", "0");
  const waits = made.map((c) => c.retry_after_us ?? c.delay_us ?? 0);
  cards.replaceChildren(card("calls", count(made.length)), card("allowed", count(allowed.length)), card("refused", count(made.length - allowed.length), made.length > allowed.length),
    card("tokens granted", count(allowed.reduce((sum, c) => sum + c.granted, 0))), card("longest wait", made.length ? span(Math.max(0, ...waits)).replace("now", "none") : "–"));
  bucket.replaceChildren(
    s("svg", {viewBox: "0 0 100 120", role: "img", "aria-label": "The bucket"},
      s("rect", {class: "water", x: 12, width: 76, y: (112 - 100 * full).toFixed(1), height: (100 * full).toFixed(1)}), s("path", {class: "wall", d: "M10 8V114H90V8"})),
    h("b", {}, free.toFixed(free % 1 === 0 ? 0 : 1)), h("span", {}, free < 0 ? "tokens: in debt" : "free tokens"));
}

// levelAt returns the free tokens at a time: the last point of those at one time counts.
function levelAt(t) {
  const i = run.level.findLastIndex(([at]) => at <= t), [t0, v0] = run.level[i], next = run.level[i + 1];
  return run.steps || !next ? v0 : v0 + (next[1] - v0) * (t - t0) / (next[0] - t0);
}

// drawPad shows the calls over time. To draw there makes the pattern drawn.
function drawPad() {
  const n = perPart();
  const most = Math.max(tallest, ...n), wide = width / parts;
  const svg = s("svg", {class: "chart pad", id: "pad", viewBox: `0 0 ${width} 80`, preserveAspectRatio: "none", role: "img", "aria-label": "Calls over time"},
    n.map((c, i) => c > 0 && s("rect", {class: "bar", x: (i * wide + 1).toFixed(1), width: (wide - 2).toFixed(1), y: (80 - 80 * c / most).toFixed(1), height: (80 * c / most).toFixed(1)})));
  if (pad.firstChild) pad.firstChild.replaceChildren(...svg.childNodes); // that a pointer may have captured
  else pad.append(listen(svg));
}

function listen(svg) {
  let last; // [part, calls] of the pointer
  const put = (e) => {
    const r = svg.getBoundingClientRect(), list = shown(), clamp = (v, most) => Math.max(0, Math.min(most, v));
    const part = clamp(Math.floor(parts * (e.clientX - r.left) / r.width), parts - 1), calls = clamp(Math.round(tallest * (1 - (e.clientY - r.top) / r.height)), tallest);
    const [from, n] = last ?? [part, calls], step = part < from ? -1 : 1;
    for (let i = from; i !== part; i += step) list[i] = Math.round(n + (calls - n) * (i - from) / (part - from)); // none is passed over
    list[part] = calls;
    last = [part, calls];
    fields.drawn.value = list.join(",");
    fields.pattern.value = "drawn";
    edited();
  };
  svg.addEventListener("pointerdown", (e) => { svg.setPointerCapture(e.pointerId); last = undefined; put(e); });
  svg.addEventListener("pointermove", (e) => { if (svg.hasPointerCapture(e.pointerId)) put(e); });
  return svg;
}

// shown is the drawn pattern, with as many parts as can be drawn.
function shown() {
  const list = numbers(fields.drawn.value);
  return Array.from({length: parts}, (_, i) => list[Math.floor(i * list.length / parts)] || 0);
}

function start() {
  if (Number(at.value) >= 1000) at.value = 0;
  const from = performance.now() - at.value * seconds;
  const step = (now) => {
    at.value = Math.min(1000, Math.max(0, (now - from) / seconds));
    show();
    if (Number(at.value) < 1000) playing = requestAnimationFrame(step);
    else stop();
  };
  playing = requestAnimationFrame(step);
  play.textContent = "Pause";
}

function stop() {
  cancelAnimationFrame(playing);
  playing = 0;
  play.textContent = "Play";
}

// edited takes over what somebody has changed.
function edited() {
  const pattern = fields.pattern.value;
  if (pattern === "drawn" && fields.drawn.value === "") fields.drawn.value = (run ? perPart() : [8, 0, 0, 4]).join(",");
  drawnLabel.hidden = pattern !== "drawn";
  everyLabel.hidden = pattern === "drawn";
  countLabel.hidden = pattern !== "bursts";
  burstLabel.hidden = ["leaky_bucket", "sliding_window"].includes(fields.algorithm.value);
  everyLabel.firstChild.textContent = pattern === "poll" ? "pause when allowed" : "every";
  write(fields);
  change();
}

at.addEventListener("input", () => { if (playing) stop(); show(); });
addEventListener("hashchange", () => { if (location.hash !== "#view") { read(fields); edited(); } });
document.getElementById("view").append(h("h1", {}, "Playground"),
  h("p", {class: "quiet"}, "A limit and calls to it, in virtual time. dipwell's own code decides them, compiled for the browser; nothing is sent. The address has all settings."),
  h("form", {id: "settings", oninput: edited, onsubmit: (e) => e.preventDefault()},
    h("fieldset", {}, h("legend", {}, "Limit"), h("div", {class: "row"}, label("algorithm"), label("rate"), label("per"), burstLabel, label("max_debt"), label("block"))),
    h("fieldset", {}, h("legend", {}, "Calls"), h("p", {class: "quiet"}, "Draw them here, or choose a pattern:"), pad, // above the fields, which come and go while somebody draws
      h("div", {class: "row"}, label("pattern"), everyLabel, countLabel, label("span"), label("verb"), label("cost"), drawnLabel))),
  note, h("div", {class: "stage"}, stage, bucket), h("div", {class: "transport"}, play, at, clock), cards,
  h("details", {}, h("summary", {}, "The calls, one a line"), answers));
read(fields);
edited();
