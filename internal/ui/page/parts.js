// Components that more than one view has, in the order of console.css.
import {html, useEffect, useRef, useState} from "./preact.js";
import {customer, limitPage} from "./state.js";
import {day, minute, shorter} from "./words.js";

const paths = {
  find: html`<circle cx="7" cy="7" r="4.5"/><path d="m10.5 10.5 3.5 3.5"/>`,
  open: html`<path d="m6 3.5 4.5 4.5L6 12.5"/>`,
  close: html`<path d="m4 4 8 8M12 4l-8 8"/>`,
  good: html`<circle cx="8" cy="8" r="6.5"/><path d="m5.2 8.2 2 2 3.8-4.2"/>`,
  fault: html`<path d="M8 2.2 14.5 13.5H1.5Z"/><path d="M8 6.5v3M8 11.6v.1"/>`,
};
export const Icon = ({name}) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">${paths[name]}</svg>`;

// Rich shows a sentence of why.js.
export const Rich = ({text}) => text.split("\u0001").map((part, i) => (i % 2 ? html`<b>${part}</b>` : part));

// KeyLink is a customer by its key, or the bucket of a shared limit.
export const KeyLink = ({of, limit}) => (of ? html`<a class="key" href=${customer(of)} title=${shorter(of) === of ? undefined : of}>${shorter(of)}</a>` : html`<a class="key" href=${customer("", limit)}>shared bucket</a>`);
export const LimitLink = ({name}) => html`<a class="key" href=${limitPage(name)}>${name}</a>`;

// Head is the title of a section and an aside.
export const Head = ({title, children}) => html`<div class="section-head"><h2>${title}</h2>${children && html`<small>${children}</small>`}</div>`;

// Table has columns [title, class] and rows of cells.
export function Table({columns, rows, empty}) {
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll"><table><thead><tr>${columns.map(([title, kind]) => html`<th class=${kind} scope="col">${title}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((c, i) => html`<td class=${columns[i][1]}>${c}</td>`)}</tr>`)}</tbody></table></div>`;
}

const looks = {refuses: "refuses", blocked: "blocked", passes: "passes", shadow: "shadowed", away: "away"};
export const Badge = ({kind, children}) => html`<span class=${"badge " + (looks[kind] ?? "")}>${children}</span>`;

export const Empty = ({title, children}) => html`<div class="empty">${title && html`<b>${title}</b><br/>`}${children}</div>`;

// Skeleton stands for what is loaded. It appears after 200 ms, and says after 2 s how long.
export function Skeleton() {
  const [seconds, set] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => set((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="late" role="status" aria-label="Loading"><span class="skeleton head"></span><span class="skeleton"></span><span class="skeleton"></span><span class="skeleton"></span>
    ${seconds >= 2 && html`<p class="quiet">The store is slow: ${seconds} s so far.</p>`}</div>`;
}

// Failed says why a view cannot be shown.
export const Failed = ({error, retry}) => html`<div class="empty" role="alert"><b class="fault">${error.reason ?? error.message}</b><br/>
  <button class="link" onClick=${retry}>Try again</button></div>`;

// Loaded shows what was loaded, or why not.
export function Loaded({answer, children}) {
  const [value, error, reload] = answer;
  if (value !== undefined) return children(value, reload);
  return error ? html`<${Failed} error=${error} retry=${reload}/>` : html`<${Skeleton}/>`;
}

// Field is an input with its label, an aside, and below it what is wrong with it.
export function Field({id, label, aside, error, value, set, ...props}) {
  const wrong = error && html`<span class="error" id=${id + "-error"}>${error}</span>`;
  return html`<label class=${"field" + (error ? " wrong" : "")}><span>${label} ${aside && html`<span>${aside}</span>`}</span>
    <input id=${id} value=${value} onInput=${(e) => set(e.target.value)} autocomplete="off" aria-invalid=${error ? "true" : undefined} aria-describedby=${error ? id + "-error" : undefined} ...${props}/>${wrong}</label>`;
}

// Choice is one of a few: options are [value, text].
export const Choice = ({id, label, value, set, options}) => html`<div class="field"><span>${label}</span><div class="choice" role="radiogroup" aria-label=${label}>
  ${options.map(([v, text]) => html`<label><input type="radio" name=${id} id=${id + "-" + v} value=${v} checked=${v === value} onChange=${() => set(v)}/>${text}</label>`)}</div></div>`;

// Outcome says what an action will do, as lines of [when, what].
export const Outcome = ({lines, children}) => html`<div class="outcome"><h3>What will happen</h3><ul>
  ${lines.filter(Boolean).map(([when, what]) => html`<li><span>${when}</span><span><${Rich} text=${what}/></span></li>`)}</ul>${children}</div>`;

// Timeline lists events, the newest first, by days. An event is {at, text, below, undo, isNew}.
// A flat one is of one day.
export function Timeline({events, none, flat}) {
  if (events.length === 0) return html`<p class="empty">${none}</p>`;
  const lines = [];
  let last;
  for (const e of events) {
    const date = day(e.at, true);
    if (date !== last && !flat) lines.push(html`<li class="day" key=${"day" + date}>${date}</li>`);
    last = date;
    lines.push(html`<li class=${e.isNew && "new"} key=${e.id}><time datetime=${new Date(e.at).toISOString()}>${minute(e.at)}</time>
      <div>${e.struck ? html`<s>${e.text}</s>` : e.text}${e.below && html`<small>${e.below}</small>`}</div>${e.undo}</li>`);
  }
  return html`<ol class="timeline">${lines}</ol>`;
}

// useWidth returns the width of an element in pixels, for a chart.
export function useWidth(usual) {
  const ref = useRef(), [width, set] = useState(usual);
  useEffect(() => {
    const watch = new ResizeObserver(([e]) => set(Math.max(200, Math.round(e.contentRect.width))));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}
